"""The openai package as a client: most clients read the same fields."""

from __future__ import annotations

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def connect(run_server, make_service):
    """``connect(engine)``: a client of a server that runs it."""
    clients = []

    def connect(engine, key="unused", **options):
        running = run_server(make_service(engine, **options))
        client = openai.OpenAI(base_url=running.url + "/v1", api_key=key, max_retries=0)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


def test_a_chat_answer_is_read_whole(connect, make_engine):
    client = connect(make_engine("Hello", " there"))
    answer = client.chat.completions.create(model="any", messages=MESSAGES, seed=1)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_chat_answer_is_read_as_it_comes(connect, make_engine):
    client = connect(make_engine("Hello", 0.05, " there", 0.05, " €"))
    stream = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    assert "".join(filter(None, texts)) == "Hello there €"
    assert len([text for text in texts if text]) == 3
    assert chunks[-1].usage.completion_tokens > 0


def test_the_streaming_helper_accepts_our_order_of_events(connect, make_engine):
    client = connect(make_engine("Hello", " there"))
    with client.chat.completions.stream(model="any", messages=MESSAGES) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "Hello there"


def test_reasoning_reaches_the_client(connect, make_engine):
    client = connect(make_engine("why", "</think>", "\n\nso"))
    answer = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    assert answer.choices[0].message.reasoning_content == "why"
    assert answer.choices[0].message.content == "so"


def test_tool_calls_are_read_both_ways(connect, make_engine):
    parts = ("Hm.\n\n<tool_call>\n<function=look>\n<parameter=at>\nthe", " sky\n</parameter>\n")
    client = connect(make_engine(*parts, "</function>\n", "</tool_call>"))
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    fields = {"model": "any", "messages": MESSAGES, "tools": tools}
    whole = client.chat.completions.create(**fields).choices[0]
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Hm."
        (call,) = choice.message.tool_calls
        assert call.function.name == "look"
        assert call.function.arguments == '{"at": "the sky"}'


def test_logprobs_are_read(connect, make_engine):
    client = connect(make_engine("one", " two"))
    answer = client.chat.completions.create(
        model="any", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == "one two"
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_a_completion_is_read_both_ways(connect, make_engine):
    client = connect(make_engine("one", " two"))
    whole = client.completions.create(model="any", prompt="Hi", logprobs=1)
    assert whole.choices[0].text == "one two"
    assert "".join(whole.choices[0].logprobs.tokens) == "one two"
    parts = client.completions.create(model="any", prompt="Hi", stream=True)
    assert "".join(part.choices[0].text for part in parts) == "one two"


def test_models_are_listed_and_found(connect, make_engine):
    client = connect(make_engine("x"))
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "kinfolk"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_become_the_exceptions_of_the_package(connect, make_engine, broken):
    create = connect(make_engine("x"), runtime={"context": 64}).chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="any", messages=[{"role": "user", "content": "word " * 100}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="any", messages=MESSAGES, response_format={"type": "json_object"})
    assert caught.value.param == "response_format"
    with pytest.raises(openai.InternalServerError):
        connect(make_engine(broken)).chat.completions.create(model="any", messages=MESSAGES)


def test_a_failure_in_a_stream_is_raised_by_the_package(connect, make_engine, broken):
    client = connect(make_engine("Hello", 0.4, broken))
    stream = client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="out of order"):
        list(stream)


def test_keys_are_asked_for(connect, make_engine):
    engine = make_engine("x")
    with pytest.raises(openai.AuthenticationError):
        connect(engine, key="wrong", api_keys=("right",)).models.list()
    assert connect(engine, key="right", api_keys=("right",)).models.list().data

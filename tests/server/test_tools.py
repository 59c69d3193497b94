"""Tools in /v1/chat/completions: the rendered prompt, and the calls as clients read them."""

from __future__ import annotations

import json

import pytest

from kinfolk.text.formats import ChatFormat
from kinfolk_gemma4.text import CHAT as GEMMA4
from kinfolk_laguna.text import CHAT as LAGUNA
from kinfolk_qwen35.text import CHAT as QWEN35

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
QWEN_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo~me\n</parameter>\n"
    "<parameter=days>\n3\n</par~ameter>\n</function>\n</tool_call>"
)
LAGUNA_CALL = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ro~me</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_~value>\n</tool_call>\n"
)
GEMMA_CALL = '<|tool_call>call:get_wea~ther{city:<|"|>Ro~me<|"|>,days:3}<tool_call|>'
SYNTAXES = {
    "qwen35": (QWEN35, QWEN_CALL.split("~")),
    "laguna": (LAGUNA, LAGUNA_CALL.split("~")),
    "gemma4": (GEMMA4, GEMMA_CALL.split("~")),
}


@pytest.fixture(params=SYNTAXES)
def calling(request, make_client, make_engine):
    """``calling(before, calls)``: a model of each family that says something, then calls."""
    chat_format, steps = SYNTAXES[request.param]

    def client(before="", calls=1, **engine):
        script = [part for step in [before, *steps * calls] if step for part in (step, 0.005)]
        runtime = {"chat_format": chat_format, "context": 2048}
        return make_client(make_engine(*script, **engine), runtime=runtime)

    return client


def function_of(call):
    return call["function"]["name"], json.loads(call["function"]["arguments"])


ROME = ("get_weather", {"city": "Rome", "days": 3})


def test_calls_are_part_of_a_message(calling, user):
    choice = calling(calls=2).post(CHAT, json=user(tools=[WEATHER])).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [function_of(call) for call in calls] == [ROME, ROME]
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 2
    assert all("index" not in call for call in calls)


def test_calls_are_streamed_after_the_text(calling, user, read_stream):
    response = calling("Let me see.\n\n", 2).post(CHAT, json=user(tools=[WEATHER], stream=True))
    stream = read_stream(response)
    (choice,) = stream.check_chat()
    assert choice["content"] == "Let me see."
    assert [function_of(call) for call in choice["tool_calls"]] == [ROME, ROME]
    assert choice["finish"] == "tool_calls"
    parts = [
        delta["tool_calls"][0]["function"]["arguments"]
        for event in stream.events
        if "tool_calls" in (delta := event["choices"][0]["delta"])
    ]
    assert any(part.endswith("Ro") for part in parts), "a string comes as it is written"


def test_without_tools_nothing_is_a_call(calling, user):
    client = calling()
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = client.post(CHAT, json=user(**fields)).json()["choices"][0]
        assert "get_weather" in choice["message"]["content"]
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


def test_a_call_of_another_tool_is_text(calling, user):
    other = {"type": "function", "function": {"name": "other"}}
    choice = calling().post(CHAT, json=user(tools=[other])).json()["choices"][0]
    assert "get_weather" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_a_call_cut_short_is_none(calling, user, read_stream):
    body = user(tools=[WEATHER])
    for calls, kept in ((1, 0), (2, 1)):
        client = calling(calls=calls)
        limit = _limit(client, body, kept)
        choice = client.post(CHAT, json={**body, "max_tokens": limit}).json()["choices"][0]
        assert len(choice["message"].get("tool_calls", ())) == kept
        assert choice["message"]["content"], "what was written of it is given back"
        assert choice["finish_reason"] == "length"
        streamed = client.post(CHAT, json={**body, "max_tokens": limit, "stream": True})
        assert read_stream(streamed).check_chat()[0]["finish"] == "length"


def _limit(client, body, kept):
    """A number of tokens that ends within call number ``kept``."""
    whole = client.post(CHAT, json=body).json()["usage"]
    count = whole["completion_tokens"] - 1
    return count // 2 if kept == 0 else count * 3 // 4


def test_one_call_is_enough_where_parallel_ones_are_not_wanted(calling, user, read_stream):
    client = calling(calls=3)
    body = user(tools=[WEATHER], parallel_tool_calls=False)
    choice = client.post(CHAT, json=body).json()["choices"][0]
    assert [function_of(call) for call in choice["message"]["tool_calls"]] == [ROME]
    assert choice["finish_reason"] == "tool_calls"
    (streamed,) = read_stream(client.post(CHAT, json={**body, "stream": True})).check_chat()
    assert [function_of(call) for call in streamed["tool_calls"]] == [ROME]


def test_reasoning_comes_before_the_calls(make_client, make_engine, user):
    steps = SYNTAXES["qwen35"][1]
    client = make_client(make_engine("Need it.\n", "</think>\n\n", *steps))
    fields = {"chat_template_kwargs": {"enable_thinking": True}, "tools": [WEATHER]}
    message = client.post(CHAT, json=user(**fields)).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Need it."
    assert message["content"] is None
    assert function_of(message["tool_calls"][0]) == ROME


def test_logprobs_are_those_of_the_text_that_is_shown(make_client, make_engine, user):
    steps = SYNTAXES["qwen35"][1]
    client = make_client(make_engine("one", " two", "\n\n", *steps, "\nthree"))
    body = user(tools=[WEATHER], logprobs=True)
    choice = client.post(CHAT, json=body).json()["choices"][0]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert choice["message"]["content"] == "one twothree"
    assert "".join(tokens) == "one twothree"


def test_each_choice_has_calls_of_its_own(calling, user, read_stream):
    client = calling()
    choices = client.post(CHAT, json=user(tools=[WEATHER], n=2)).json()["choices"]
    assert [function_of(c["message"]["tool_calls"][0]) for c in choices] == [ROME, ROME]
    streamed = read_stream(client.post(CHAT, json=user(tools=[WEATHER], n=2, stream=True)))
    assert [len(choice["tool_calls"]) for choice in streamed.check_chat(2)] == [1, 1]


def test_the_template_sees_tools_calls_and_results(make_client, make_engine, text, user):
    engine = make_engine("ok")
    messages = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"n": 7}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "21C"}]},
    ]
    response = make_client(engine).post(CHAT, json={"messages": messages, "tools": [WEATHER]})
    assert response.status_code == 200, response.text
    prompt = text[0].decode(engine.requests[0].prompt)
    for part in ("get_weather\n", "f(7)", "tool\n21C"):
        assert part in prompt


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("f", "tools.0"),
        ({"type": "function"}, "tools.0.function"),
        ({"type": "function", "function": {"name": 3}}, "tools.0.function"),
        (
            {"type": "function", "function": {"name": "f", "parameters": [1]}},
            "tools.0.function.parameters",
        ),
    ],
)
def test_a_tool_that_is_none_is_named(make_client, make_engine, user, tool, param):
    response = make_client(make_engine("x")).post(CHAT, json=user(tools=[tool]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_model_that_knows_no_calls_says_so(make_client, make_engine, user):
    client = make_client(make_engine("x"), runtime={"chat_format": ChatFormat()})
    response = client.post(CHAT, json=user(tools=[WEATHER]))
    assert response.status_code == 400
    assert "tools" in response.json()["error"]["message"]

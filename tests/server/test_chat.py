"""/v1/chat/completions, whole and streamed."""

from __future__ import annotations

import math

import pytest

from kinfolk.descriptors import ModelCard, SamplingDefaults

CHAT = "/v1/chat/completions"
THINK = {"chat_template_kwargs": {"enable_thinking": True}}


def test_an_answer_has_the_shape_clients_expect(make_client, make_engine, user):
    client = make_client(make_engine("Hello", " there"))
    answer = client.post(CHAT, json=user(model="whatever")).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "whatever"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_usage_counts_what_the_engine_counted(make_client, make_engine, user, text):
    engine = make_engine("Hello")
    usage = make_client(engine).post(CHAT, json=user()).json()["usage"]
    prompt = len(engine.requests[0].prompt)
    completion = len(text[0].encode("Hello", add_bos=False)) + 1
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == completion
    assert usage["total_tokens"] == prompt + completion
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 6
    assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == 2
    assert usage["accept_rate"] == 0.75


def test_timings_are_finite_numbers_whatever_was_measured(make_client, make_engine, user):
    timings = make_client(make_engine()).post(CHAT, json=user()).json()["timings"]
    assert timings["cache_n"] == 3
    assert all(isinstance(value, int | float) for value in timings.values())
    assert all(math.isfinite(value) for value in timings.values())


def test_streamed_and_whole_answers_are_the_same_text(make_client, make_engine, user, read_stream):
    client = make_client(make_engine("def f", "(x):\n", "    return x", " € 日本"))
    whole = client.post(CHAT, json=user()).json()["choices"][0]["message"]["content"]
    (streamed,) = read_stream(client.post(CHAT, json=user(stream=True))).check_chat()
    assert whole == "def f(x):\n    return x € 日本"
    assert streamed == {"content": whole, "finish": "stop"}


def test_the_usage_chunk_comes_only_when_asked_for(make_client, make_engine, user, read_stream):
    client = make_client(make_engine("Hello"))
    plain = read_stream(client.post(CHAT, json=user(stream=True)))
    plain.check_chat(usage=False)
    body = user(stream=True, stream_options={"include_usage": True})
    read_stream(client.post(CHAT, json=body)).check_chat(usage=True)


def test_an_answer_that_ends_at_once_is_streamed_in_order(
    make_client, make_engine, user, read_stream
):
    (choice,) = read_stream(
        make_client(make_engine()).post(CHAT, json=user(stream=True))
    ).check_chat()
    assert choice == {"content": "", "finish": "stop"}


def test_max_tokens_ends_an_answer_with_length(make_client, make_engine, user, read_stream):
    client = make_client(make_engine("one", " two", " three", " four"))
    for field in ("max_tokens", "max_completion_tokens", "n_predict"):
        choice = client.post(CHAT, json=user(**{field: 2})).json()["choices"][0]
        assert choice["finish_reason"] == "length", field
    (streamed,) = read_stream(client.post(CHAT, json=user(stream=True, max_tokens=2))).check_chat()
    assert streamed["finish"] == "length"


def test_tokens_of_one_step_make_one_chunk(make_client, make_engine, user, read_stream):
    client = make_client(make_engine("one two three four five"))
    events = read_stream(client.post(CHAT, json=user(stream=True))).events
    texts = [c["choices"][0]["delta"].get("content") for c in events]
    assert [text for text in texts if text] == ["one two three four five"]


def test_a_character_cut_by_tokens_is_sent_whole(make_client, make_engine, user, read_stream, text):
    tokens = text[0].encode("a😀b", add_bos=False)
    assert len(tokens) > 3, "the case's vocabulary spells the emoji byte by byte"
    engine = make_engine(*[part for token in tokens for part in ((token,), 0.01)])
    stream = read_stream(make_client(engine).post(CHAT, json=user(stream=True)))
    assert stream.check_chat()[0]["content"] == "a😀b"
    assert all("�" not in str(event) for event in stream.events)


# -- choices --------------------------------------------------------------------------------------


def test_n_choices_are_seeded_one_after_the_other(make_client, make_engine, user, read_stream):
    engine = make_engine("Hello")
    client = make_client(engine)
    answer = client.post(CHAT, json=user(n=3, seed=41)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [request.sampling.seed for request in engine.requests] == [41, 42, 43]
    assert answer["usage"]["prompt_tokens"] == len(engine.requests[0].prompt)
    found = read_stream(client.post(CHAT, json=user(n=3, stream=True))).check_chat(choices=3)
    assert found == [{"content": "Hello", "finish": "stop"}] * 3


def test_without_a_seed_answers_differ(make_client, make_engine, user):
    engine = make_engine("Hello")
    client = make_client(engine)
    for body in (user(), user(seed=None), user(seed=-1)):
        client.post(CHAT, json=body)
    assert len({request.sampling.seed for request in engine.requests}) == 3


# -- stop strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "content"),
    [
        ("END", "one two "),
        (["nowhere", "END"], "one two "),
        (["two", "END"], "one "),
        ([""], "one two END three"),
        ("ENDED", "one two END three"),
    ],
)
def test_stop_strings_end_the_text_before_them(
    make_client, make_engine, user, read_stream, stop, content
):
    script = ("one", " two", " EN", 0.01, "D th", "ree")
    client = make_client(make_engine(*script))
    choice = client.post(CHAT, json=user(stop=stop)).json()["choices"][0]
    assert choice["message"]["content"] == content
    assert choice["finish_reason"] == "stop"
    (streamed,) = read_stream(client.post(CHAT, json=user(stop=stop, stream=True))).check_chat()
    assert streamed == {"content": content, "finish": "stop"}


def test_a_stop_string_ends_the_work_of_the_engine(make_client, make_engine, user):
    engine = make_engine("one END", *([0.05, " more"] * 100))
    answer = make_client(engine).post(CHAT, json=user(stop="END", max_tokens=200)).json()
    assert answer["choices"][0]["message"]["content"] == "one "
    # The engine is told that the answer is complete, not that it was cancelled.
    assert engine.wait_until_ended(1)[0].reason.value == "stop"
    assert engine.ended[0].usage.emitted < 20


def test_text_of_special_tokens_ends_an_answer_and_is_no_part_of_it(make_client, make_engine, user):
    client = make_client(make_engine("Hello", "<|im_end|>", "never"))
    message = client.post(CHAT, json=user()).json()["choices"][0]["message"]
    assert message["content"] == "Hello"


def test_ignore_eos_goes_on_and_hides_the_end(make_client, make_engine, user):
    client = make_client(make_engine("Hello", "<|im_end|>", " again", stops=False))
    choice = client.post(CHAT, json=user(ignore_eos=True)).json()["choices"][0]
    assert choice["message"]["content"] == "Hello again"
    assert choice["finish_reason"] == "length"


def test_stop_token_ids_end_an_answer_without_their_text(make_client, make_engine, user, text):
    (comma,) = text[0].encode(",", add_bos=False)
    client = make_client(make_engine("one", ",", " two"))
    choice = client.post(CHAT, json=user(stop_token_ids=[comma])).json()["choices"][0]
    assert choice["message"]["content"] == "one"
    assert choice["finish_reason"] == "stop"


# -- reasoning ------------------------------------------------------------------------------------


def test_reasoning_is_told_from_the_answer(make_client, make_engine, user, read_stream):
    script = ("Let me", " think.\n", "</think>", "\n\n", "It is", " 4.")
    client = make_client(make_engine(*script))
    answer = client.post(CHAT, json=user(**THINK)).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "Let me think."
    assert message["content"] == "It is 4."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    (streamed,) = read_stream(client.post(CHAT, json=user(stream=True, **THINK))).check_chat()
    assert streamed == {
        "content": "It is 4.",
        "reasoning_content": "Let me think.",
        "finish": "stop",
    }


def test_an_answer_that_never_leaves_its_reasoning_has_no_content(make_client, make_engine, user):
    client = make_client(make_engine("Let me think"))
    message = client.post(CHAT, json=user(**THINK)).json()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Let me think",
    }


def test_reasoning_effort_none_asks_for_no_reasoning(make_client, make_engine, user, text):
    engine = make_engine("4")
    client = make_client(engine)
    client.post(CHAT, json=user(reasoning_effort="none"))
    client.post(CHAT, json=user(reasoning_effort="high"))
    thinking = [text[0].decode(request.prompt).endswith("<think>\n") for request in engine.requests]
    assert thinking == [False, True]


# -- log-probabilities ----------------------------------------------------------------------------


def test_logprobs_spell_the_content(make_client, make_engine, user, read_stream):
    client = make_client(make_engine("one", " two", " three"))
    body = user(logprobs=True, top_logprobs=2)
    choice = client.post(CHAT, json=body).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert [bytes(entry["bytes"]).decode() for entry in entries] == [e["token"] for e in entries]
    assert all(entry["logprob"] == -0.5 and len(entry["top_logprobs"]) == 2 for entry in entries)
    events = read_stream(client.post(CHAT, json={**body, "stream": True})).events
    streamed = [e["choices"][0].get("logprobs") for e in events]
    assert [x for part in streamed if part for x in part["content"]] == entries


def test_logprobs_of_what_a_stop_string_cut_off_are_not_told(make_client, make_engine, user):
    client = make_client(make_engine("one", " two", " END", " never"))
    choice = client.post(CHAT, json=user(logprobs=True, stop=" END")).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "one two"


def test_logprobs_of_reasoning_stand_apart(make_client, make_engine, user):
    client = make_client(make_engine("why", "</think>", "\n\n", "so"))
    choice = client.post(CHAT, json=user(logprobs=True, **THINK)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(entry["token"] for entry in logprobs["content"]).strip() == "so"
    assert "".join(e["token"] for e in logprobs["reasoning_content"]).startswith("why")


# -- requests that reach the engine ---------------------------------------------------------------


def test_every_sampling_field_reaches_the_engine(make_client, make_engine, user):
    engine = make_engine("x")
    fields = {
        "temperature": 0.7,
        "top_k": 11,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 5,
    }
    body = user(**fields, logit_bias={"7": -3.5, "9": False}, logprobs=True, top_logprobs=4)
    make_client(engine).post(CHAT, json=body)
    sampling = engine.requests[0].sampling
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert sampling.logit_bias == ((7, -3.5), (9, -math.inf))
    assert sampling.logprobs == 4


def test_what_was_not_said_comes_from_the_card(make_client, make_engine, user):
    engine = make_engine("x")
    card = ModelCard("tiny", SamplingDefaults(temperature=0.33, top_k=7), max_tokens=17)
    client = make_client(engine, runtime={"card": card})
    client.post(CHAT, json=user())
    client.post(CHAT, json=user(temperature=0.0))
    unsaid, said = (request.sampling for request in engine.requests)
    assert (unsaid.temperature, unsaid.top_k) == (0.33, 7)
    assert (said.temperature, said.top_k) == (0.0, 7)
    assert engine.requests[0].max_new == 17


def test_without_max_tokens_the_context_is_the_limit(make_client, make_engine, user):
    engine = make_engine("x")
    make_client(engine, runtime={"context": 100}).post(CHAT, json=user())
    (request,) = engine.requests
    assert len(request.prompt) + request.max_new == 100


def test_more_tokens_than_fit_are_cut_to_what_fits(make_client, make_engine, user):
    engine = make_engine("x")
    client = make_client(engine, runtime={"context": 100})
    assert client.post(CHAT, json=user(max_tokens=5000)).status_code == 200
    (request,) = engine.requests
    assert len(request.prompt) + request.max_new == 100


def test_a_conversation_names_the_place_where_its_next_turn_departs(
    make_client, make_engine, user, text
):
    engine = make_engine("x")
    make_client(engine).post(CHAT, json=user())
    (request,) = engine.requests
    (fork,) = request.checkpoints
    assert text[0].decode(request.prompt[:fork]).endswith("<|im_start|>")
    assert request.keep


def test_messages_are_brought_to_the_form_of_the_template(make_client, make_engine, text):
    engine = make_engine("x")
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "!"}],
        },
        {"role": "developer", "content": "Be brief."},
    ]
    assert make_client(engine).post(CHAT, json={"messages": messages}).status_code == 200
    prompt = text[0].decode(engine.requests[0].prompt)
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi !")


def test_unknown_fields_are_passed_over(make_client, make_engine, user):
    body = user(store=True, metadata={"a": 1}, parallel_tool_calls=True, service_tier="auto")
    assert make_client(make_engine("x")).post(CHAT, json=body).status_code == 200

"""/v1/completions: the prompt is used unchanged, without a chat template."""

from __future__ import annotations

import pytest

from kinfolk.server.schema import CompletionBody

COMPLETE = "/v1/completions"


def ask(client, **body):
    response = client.post(COMPLETE, json={"prompt": "Hi", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_completion_has_the_older_shape(make_client, make_engine):
    answer = ask(make_client(make_engine("Hello", " there")))
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "Hello there", "logprobs": None, "finish_reason": "stop"}
    ]


def test_the_prompt_is_taken_as_it_stands(make_client, make_engine, text):
    engine = make_engine("x")
    ask(make_client(engine), prompt="def f(x):\n")
    assert list(engine.requests[0].prompt) == text[0].encode("def f(x):\n")
    assert engine.requests[0].checkpoints == ()


def test_reasoning_markers_are_text_here(make_client, make_engine):
    answer = ask(make_client(make_engine("<think>a</think>b")))
    assert answer["choices"][0]["text"] == "<think>a</think>b"


def test_several_prompts_are_numbered_prompt_by_prompt(make_client, make_engine):
    engine = make_engine("x")
    answer = ask(make_client(engine), prompt=["a", "bb"], n=2, echo=True)
    texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    assert texts == [(0, "ax"), (1, "ax"), (2, "bbx"), (3, "bbx")]
    assert answer["usage"]["prompt_tokens"] == sum(
        len(prompt) for prompt in {request.prompt for request in engine.requests}
    )


def test_token_ids_are_taken_as_prompts(make_client, make_engine):
    engine = make_engine("x")
    client = make_client(engine)
    ask(client, prompt=[44, 73, 80])
    ask(client, prompt=[[44], [73, 80]])
    assert [request.prompt for request in engine.requests] == [(44, 73, 80), (44,), (73, 80)]


@pytest.mark.parametrize("prompt", [[], [[]], "", [""]])
def test_an_empty_prompt_is_refused(make_client, make_engine, prompt):
    response = make_client(make_engine("x")).post(COMPLETE, json={"prompt": prompt})
    assert response.status_code == 400
    assert "prompt" in response.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [[99999], [-1], [[5], [99999]]])
def test_ids_outside_of_the_vocabulary_are_refused(make_client, make_engine, prompt):
    response = make_client(make_engine("x")).post(COMPLETE, json={"prompt": prompt})
    assert response.status_code == 400
    assert "token ids" in response.json()["error"]["message"]


def test_a_stream_repeats_what_the_whole_answer_says(make_client, make_engine, read_stream):
    client = make_client(make_engine("one", " two", " €"))
    body = {"prompt": "Hi", "stream": True, "echo": True}
    events = read_stream(client.post(COMPLETE, json=body)).events
    assert {event["object"] for event in events} == {"text_completion"}
    assert "".join(event["choices"][0]["text"] for event in events) == "Hione two €"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]


def test_usage_closes_a_stream_if_asked_for(make_client, make_engine, read_stream):
    client = make_client(make_engine("one"))
    body = {"prompt": "Hi", "stream": True, "stream_options": {"include_usage": True}}
    *events, last = read_stream(client.post(COMPLETE, json=body)).events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    assert all(event["usage"] is None for event in events)


def test_logprobs_are_parallel_lists_with_offsets(make_client, make_engine):
    choice = ask(make_client(make_engine("one", " two", " three")), logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    assert set(logprobs["token_logprobs"]) == {-0.5}
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in top
        assert len(top) in (2, 3)


def test_offsets_count_a_character_of_several_tokens_once(make_client, make_engine):
    choice = ask(make_client(make_engine("€", " two", "€€", "!")), logprobs=1)["choices"][0]
    tokens, offsets = (choice["logprobs"][name] for name in ("tokens", "text_offset"))
    assert any("\ufffd" in token for token in tokens)
    whole = [pair for pair in zip(tokens, offsets, strict=True) if "\ufffd" not in pair[0]]
    assert whole
    for token, offset in whole:
        assert choice["text"][offset : offset + len(token)] == token
    assert offsets == sorted(offsets)


def test_offsets_go_on_through_a_stream(make_client, make_engine, read_stream):
    client = make_client(make_engine("one", 0.05, " two", 0.05, " three"))
    body = {"prompt": "Hi", "logprobs": 0}
    whole = client.post(COMPLETE, json=body).json()["choices"][0]["logprobs"]
    events = read_stream(client.post(COMPLETE, json={**body, "stream": True})).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert len([part for part in parts if part]) > 1
    assert [o for part in parts if part for o in part["text_offset"]] == whole["text_offset"]


def test_prompts_keep_their_order():
    body = CompletionBody.model_validate({"prompt": ["b", "a"]})
    assert body.prompts() == ["b", "a"]

"""The answers to requests that cannot be served: a status, an error type, the field's name."""

from __future__ import annotations

import pytest

from kinfolk.errors import CapacityError, EngineError, KinfolkError, QueueFull, RequestError
from kinfolk.server.body import LONG_BODY
from kinfolk.server.errors import from_exception

CHAT = "/v1/chat/completions"
COMPLETE = "/v1/completions"


def error_of(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert {"message", "type", "code", "param"} <= set(body["error"])
    return body["error"]


@pytest.fixture
def client(make_client, make_engine):
    return make_client(make_engine("x"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop.0"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"7": 101}}, "logit_bias.7"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"logprobs": False, "top_logprobs": 3}, None),
    ],
)
def test_a_malformed_field_is_named(client, user, fields, param):
    error = error_of(client.post(CHAT, json=user(**fields)), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 11}, "presence_penalty"),
        ({"logit_bias": {"7": -101}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"messages": [{"content": "Hi"}]}, "role"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, "content"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
    ],
)
def test_a_value_out_of_range_is_named(client, user, fields, word):
    error = error_of(client.post(CHAT, json=user(**fields)), 400)
    assert word in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"tools": [{"type": "web_search"}]}, "tools.0.type"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (CHAT, {"functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"continue_final_message": True}, "continue_final_message"),
        (CHAT, {"grammar": "root ::= x"}, "grammar"),
        (CHAT, {"min_tokens": 3}, "min_tokens"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0",
        ),
        (COMPLETE, {"suffix": "end"}, "suffix"),
        (COMPLETE, {"best_of": 3}, "best_of"),
        (COMPLETE, {"echo": True, "logprobs": 1}, "logprobs"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(client, user, path, fields, param):
    body = user(**fields) if path == CHAT else {"prompt": "Hi", **fields}
    error = error_of(client.post(path, json=body), 400)
    assert (error["type"], error["code"]) == ("not_supported_error", "unsupported_parameter")
    assert error["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"min_tokens": 0},
        {"logit_bias": None},
        {"stop": None},
        {"max_tokens": -1},
    ],
)
def test_fields_that_ask_for_nothing_are_no_error(client, user, fields):
    assert client.post(CHAT, json=user(**fields)).status_code == 200


def test_an_unknown_format_is_invalid_rather_than_unsupported(client, user):
    error = error_of(client.post(CHAT, json=user(response_format={"type": "yaml"})), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_told_with_its_numbers(
    make_client, make_engine, user, stream
):
    client = make_client(make_engine("x"), runtime={"context": 32})
    long = [{"role": "user", "content": "word " * 100}]
    error = error_of(client.post(CHAT, json={"messages": long, "stream": stream}), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "exceed_context_size_error"
    assert "maximum context length is 32 tokens" in error["message"]
    assert error["n_ctx"] == 32
    assert error["n_prompt_tokens"] > 100


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "word " * 100}]}, "messages"),
        (COMPLETE, {"prompt": "word " * 100}, "prompt"),
        (COMPLETE, {"prompt": [44] * 100}, "prompt"),
        (COMPLETE, {"prompt": ["Hi", "word " * 100]}, "prompt.1"),
    ],
)
def test_what_is_too_long_is_named_as_the_client_named_it(
    make_client, make_engine, path, body, field
):
    client = make_client(make_engine("x"), runtime={"context": 32})
    error = error_of(client.post(path, json=body), 400)
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: {error['n_prompt_tokens']} tokens")
    assert not {"messages", "prompt"} - {field.split(".")[0]} & set(error["message"].split())


@pytest.mark.parametrize("role", ["wizard", "", None, 5, ["user"], {}])
@pytest.mark.parametrize("place", [0, 2])
def test_an_unknown_role_is_told_with_those_there_are(client, role, place):
    messages = [{"role": "user", "content": "Hi"} for _ in range(3)]
    messages[place]["role"] = role
    error = error_of(client.post(CHAT, json={"messages": messages}), 400)
    assert error["param"] == f"messages.{place}.role"
    assert repr(role) in error["message"]
    assert "system, user, assistant, tool, developer" in error["message"]


@pytest.mark.parametrize(
    "name",
    [
        *("self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict"),
    ],
)
def test_a_template_variable_that_is_not_the_clients_is_named(client, user, name):
    body = user(chat_template_kwargs={"enable_thinking": False, name: 1})
    error = error_of(client.post(CHAT, json=body), 400)
    assert error["param"] == f"chat_template_kwargs.{name}"
    assert repr(name) in error["message"]


def test_a_template_variable_of_any_other_name_is_passed_on(client, user):
    names = [
        "source",
        "variables",
        "probe",
        "args",
        "kwargs",
        "loop",
        "the budget",
        "__class__",
        "",
    ]
    body = user(chat_template_kwargs=dict.fromkeys(names, 1))
    assert client.post(CHAT, json=body).status_code == 200


@pytest.mark.parametrize("bias", [False, -100])
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_a_bias_that_forbids_every_token_is_refused(client, text, user, path, bias):
    count = text[0].vocab_size
    biases = {str(token): bias for token in range(count)}
    body = {"logit_bias": biases, **(user() if path == CHAT else {"prompt": "Hi"})}
    error = error_of(client.post(path, json=body), 400)
    assert error["param"] == "logit_bias"
    assert f"all {count} tokens" in error["message"]
    del biases["7"]
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize(
    ("prompts", "n", "param"), [(["a"] * 9, 1, "prompt"), (["a", "b"], 5, "n"), ("a", 9, "n")]
)
def test_more_answers_than_could_ever_run_are_refused_before_they_are_read(
    make_client, make_engine, monkeypatch, prompts, n, param
):
    monkeypatch.setattr("kinfolk.server.completions.text_prompt", None)
    client = make_client(make_engine("x"), slots=4, max_queue=4)
    error = error_of(client.post(COMPLETE, json={"prompt": prompts, "n": n}), 400)
    assert error["param"] == param
    assert "at most 8" in error["message"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b'{"messages": NaN}', b'{"a": Infinity}', b"\xff", b"nul"],
)
def test_what_is_no_json_object_is_refused(client, raw):
    error = error_of(client.post(CHAT, content=raw), 400)
    assert error["type"] == "invalid_request_error"


def test_long_bodies_are_read_as_short_ones(client):
    """In a thread."""
    filler = b'"x": "' + b"y" * LONG_BODY + b'", '
    error = error_of(client.post(CHAT, content=b"{" + filler + b'"a": NaN}'), 400)
    assert "NaN is not a JSON number" in error["message"]
    ids = [1] * LONG_BODY + [10**6]
    error = error_of(client.post(COMPLETE, json={"prompt": ids}), 400)
    assert error["param"] == "prompt"


@pytest.mark.parametrize("depth", [70, 100_000])
def test_deep_nesting_is_refused(client, depth):
    raw = b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"
    assert "levels deep" in error_of(client.post(CHAT, content=raw), 400)["message"]


def test_the_content_type_does_not_matter(client):
    raw = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post(CHAT, content=raw, headers=headers).status_code == 200


def test_paths_and_methods_that_do_not_exist_are_told_in_the_same_form(client):
    assert error_of(client.get("/v1/nothing"), 404)["type"] == "not_found_error"
    assert error_of(client.get(CHAT), 405)["type"] == "invalid_request_error"


def test_a_model_without_a_template_cannot_chat(make_client, make_engine, user):
    client = make_client(make_engine("x"), runtime={"chat": False})
    assert "chat template" in error_of(client.post(CHAT, json=user()), 400)["message"]
    assert client.post(COMPLETE, json={"prompt": "Hi"}).status_code == 200


def test_any_model_name_is_taken_unless_the_server_is_strict(make_client, make_engine, user):
    assert make_client(make_engine("x")).post(CHAT, json=user(model="gpt")).status_code == 200
    strict = make_client(make_engine("x"), strict_model=True)
    assert error_of(strict.post(CHAT, json=user(model="gpt")), 404)["code"] == "model_not_found"
    assert strict.post(CHAT, json=user(model="tiny")).status_code == 200
    assert strict.post(CHAT, json=user()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_a_status_of_its_own(
    make_client, make_engine, user, broken, stream
):
    client = make_client(make_engine(broken))
    error = error_of(client.post(CHAT, json=user(stream=stream)), 500)
    assert error["type"] == "server_error"
    assert "out of order" in error["message"]


def test_a_failure_after_the_first_token_is_told_in_the_stream(
    make_client, make_engine, user, broken, read_stream
):
    client = make_client(make_engine("Hello", 0.3, broken))
    events = read_stream(client.post(CHAT, json=user(stream=True))).events
    assert events[1]["choices"][0]["delta"]["content"] == "Hello"
    assert events[-1]["error"]["type"] == "server_error"


def test_what_the_engine_refuses_is_told_with_its_reason(make_client, make_engine, user):
    refusing = make_engine("x", refuse=RequestError("the pool is too small for this"))
    client = make_client(refusing)
    assert "too small" in error_of(client.post(CHAT, json=user()), 400)["message"]


def test_a_bug_tells_a_stranger_nothing(make_client, make_engine, user):
    client = make_client(make_engine("x", refuse=ZeroDivisionError("secret")))
    error = error_of(client.post(CHAT, json=user()), 500)
    assert "secret" not in error["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("no"), 400, "invalid_request_error"),
        (CapacityError("full"), 503, "unavailable_error"),
        (QueueFull("full"), 429, "rate_limit_error"),
        (EngineError("dead"), 500, "server_error"),
        (KinfolkError("other"), 500, "server_error"),
        (ValueError("bug"), 500, "server_error"),
    ],
)
def test_every_kind_of_error_has_a_status_and_a_type(error, status, kind):
    told = from_exception(error)
    assert (told.status, told.kind) == (status, kind)
    assert (told.retry_after is not None) == (status in (429, 503))

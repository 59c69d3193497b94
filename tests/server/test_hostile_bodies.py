"""Every field of every body with hostile values: a 400 that names the field, or an answer.

Never a 500, and no effect on other requests: while a field's values are sent, another stream runs
on the same engine, and must give the output that it gives alone.
"""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace

import httpx
import pytest

from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.server.lifecycle import GracefulServer, bind
from kinfolk.server.options import ServerOptions
from kinfolk.server.schema import ChatBody, CompletionBody
from kinfolk.server.service import Service
from kinfolk.settings import load_settings
from kinfolk.text.chat import ChatTemplate

CHAT = "/v1/chat/completions"
COMPLETE = "/v1/completions"
BODIES = {CHAT: ChatBody, COMPLETE: CompletionBody}

HUGE = str(10**400)
NO_JSON = ["NaN", "Infinity", "-Infinity"]
NUMBERS = [
    *("0", "-0.0", "1", "-1", "2147483648", "9223372036854775808", "18446744073709551616"),
    *("-9223372036854775809", HUGE, "-" + HUGE, "1e400", "-1e400", "1e-320", "1.5"),
    *("9" * 5000, *NO_JSON),
]
TEXTS = [
    '""',
    '"x"',
    '"nan"',
    '"1e400"',
    '"-Infinity"',
    f'"{HUGE}"',
    '"9223372036854775808"',
    r'"\ud800"',
    r'"\u0000"',
    json.dumps("y" * 20_000),
]
OTHERS = [
    *("null", "true", "false", "[]", "{}", "[null]", '[""]', "[[]]", "[1, null]", '["a", 1]'),
    *("[9223372036854775808]", "[-1]", f"[{HUGE}]", "[1e400]", "[1.5]", "[true]", '{"a": 1}'),
    *('{"": null}', '{"self": 1}', r'{"\ud800": "\ud800"}', "[" * 60 + "]" * 60),
    '{"a": ' * 60 + "1" + "}" * 60,
    "[" * 5000 + "]" * 5000,
]
VALUES = NUMBERS + TEXTS + OTHERS
FEWER = NUMBERS[1::3] + TEXTS[::3] + OTHERS[::2]

# Terms of the libraries that parse bodies, and of Python.
FOREIGN = [
    *("input should", "string should", "list should", "should be", "should have", "pydantic"),
    *("unable to", "valid integer", "valid number", "valid string", "field required", "sys."),
    *("traceback", "nonetype", "keyword argument", "value error", "type=", "positional"),
]

SOON_OVER = {"stop_token_ids": list(range(768))}

# Other fields without which the value of a field has no effect.
BESIDE = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "best_of": {"n": 2},
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n_predict"), SOON_OVER),
}


def fields():
    return [
        pytest.param(path, name, id=f"{path.rpartition('/')[0][4:]}-{name}")
        for path, body in BODIES.items()
        for name in body.model_fields
    ]


@pytest.fixture(scope="module")
def runtime(cases):
    settings = load_settings(slots=8, context=200, dtype="f32", device="cpu")
    with Runtime.open(cases / "qwen35.gguf", settings, Registry.discover(settings)) as runtime:
        yield runtime


class Neighbour(threading.Thread):
    """Asks for the same answers again and again, whatever else happens."""

    BODIES = (
        {"temperature": 0, "logprobs": 1},
        {"temperature": 1, "seed": 7, "presence_penalty": 0.3, "logit_bias": {"9": 2}},
    )

    def __init__(self, url):
        super().__init__(daemon=True)
        self.client = httpx.Client(base_url=url, timeout=60)
        self.alone = self.ask()
        self.answers = 0
        self.wrong = []
        self.stopping = False

    def ask(self):
        body = {"prompt": list(range(50, 90)), "max_tokens": 12, "ignore_eos": True}
        texts = []
        for fields in self.BODIES:
            answer = self.client.post(COMPLETE, json={**body, **fields, "stream": True})
            events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
            texts.append("".join(event["choices"][0]["text"] for event in events))
        return texts

    def run(self):
        while not self.stopping:
            try:
                answer = self.ask()
            except Exception as error:
                answer = error
            if answer != self.alone:
                self.wrong.append(answer)
            self.answers += 1

    def settle(self):
        """Wait for the running answers; they must equal those that the requests get alone."""
        before, deadline = self.answers, time.monotonic() + 60
        while self.answers == before:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert not self.wrong


@pytest.fixture(scope="module")
def server(runtime, template):
    """A server around a real engine: its address, and the neighbour that it also serves."""
    chat = ChatTemplate(template, runtime.tokenizer, runtime.chat_format)
    service = Service(replace(runtime, chat=chat), ServerOptions("case"), 8)
    sock = bind("127.0.0.1", 0)
    running = GracefulServer(service)
    thread = threading.Thread(target=running.run, args=([sock],), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    deadline = time.monotonic() + 20
    while not running.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    neighbour = Neighbour(address)
    neighbour.start()
    yield address, neighbour
    neighbour.stopping = True
    neighbour.join(60)
    running.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def asking(server):
    """One client of the server for all tests: each new client would read the certificates again."""
    address, _ = server
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture
def client(server, asking):
    yield asking
    _, neighbour = server
    neighbour.settle()


def valid(path):
    body = {"max_tokens": 1, "n": 1, "temperature": 0, "stream": False}
    if path == CHAT:
        return {"messages": [{"role": "user", "content": "Hi"}], **body}
    return {"prompt": "Hi", **body}


def with_value(path, name, value):
    """The bytes of a valid body in which one field has the value, JSON or not."""
    body = {**valid(path), **BESIDE.get(name, {})}
    body.pop("max_tokens" if BESIDE.get(name) is SOON_OVER else name, None)
    rest = json.dumps(body)[1:]
    return f'{{"{name}": {value}, {rest}'.encode()


def check(response, named):
    """The response is an answer, or a refusal in our own wording."""
    assert response.status_code in (200, 400), response.text[:500]
    if response.status_code == 200:
        assert '"error"' not in response.text, response.text[:500]
        return
    error = response.json()["error"]
    message = error["message"]
    assert len(message) < 500, message[:1000]
    assert not [words for words in FOREIGN if words in message.lower()], message
    if error["param"] is not None:
        assert error["param"].split(".")[0] in named, error
    else:
        assert "the body" in message or any(name in message for name in named), error


@pytest.mark.parametrize(("path", "name"), fields())
def test_any_value_of_a_field_is_answered_or_refused_by_name(client, path, name):
    for value in VALUES:
        response = client.post(path, content=with_value(path, name, value))
        check(response, {name, *BESIDE.get(name, {})})
        assert ("is not valid JSON" in response.text) == (value in NO_JSON)


INSIDE = [
    '{"messages": [{"role": "user", "content": "Hi", "%s": V}]}' % name  # noqa: UP031
    for name in ("name", "tool_calls", "reasoning", "reasoning_content", "refusal", "weight")
]
INSIDE += [
    '{"messages": [{"role": V, "content": "Hi"}]}',
    '{"messages": [{"role": "user", "content": V}]}',
    '{"messages": [{"role": "user", "content": [V]}]}',
    '{"messages": [{"role": "user", "content": [{"type": "text", "text": V}]}]}',
    '{"messages": [{"role": "user", "content": [{"type": V, "text": "x"}]}]}',
    '{"messages": [{"role": "assistant", "tool_calls": [{"function": V}]}]}',
    '{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": V}}]}]}',
    '{"messages": [{"role": "assistant", "tool_calls": '
    '[{"function": {"name": "f", "arguments": V}}]}]}',
    '{"messages": [{"role": "assistant", "tool_calls": '
    '[{"function": {"name": "f", "arguments": {"n": V}}}]}]}',
    '{"messages": [V]}',
    '{"tools": [V], MESSAGES}',
    '{"tools": [{"type": V}], MESSAGES}',
    '{"tools": [{"type": "function", "function": V}], MESSAGES}',
    '{"tools": [{"type": "function", "function": {"name": V}}], MESSAGES}',
    '{"tools": [{"type": "function", "function": {"name": "f", "parameters": V}}], MESSAGES}',
    '{"tools": [{"type": "function", "function": {"name": "f", '
    '"parameters": {"properties": V}}}], MESSAGES}',
    '{"tools": [{"type": "function", "function": {"name": "f", '
    '"parameters": {"properties": {"n": V}}}}], MESSAGES}',
    '{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": V, MESSAGES}',
    '{"response_format": {"type": V}, MESSAGES}',
    '{"stream": true, "stream_options": {"include_usage": V}, MESSAGES}',
    '{"chat_template_kwargs": {"enable_thinking": V}, MESSAGES}',
    '{"chat_template_kwargs": {"tone": V}, MESSAGES}',
    '{"logit_bias": {"7": V}, MESSAGES}',
    '{"logit_bias": {V: 1}, MESSAGES}',
    '{"logit_bias": [[V, 1]], MESSAGES}',
    '{"logit_bias": [[7, V]], MESSAGES}',
    '{"logit_bias": [V], MESSAGES}',
]


@pytest.mark.parametrize("form", INSIDE)
def test_any_value_inside_a_field_is_answered_or_refused_by_name(client, form):
    question = '"messages": [{"role": "user", "content": "Hi"}]'
    for value in FEWER:
        if "{V:" in form and not value.startswith('"'):
            value = json.dumps(value[:1000])
        body = form.replace("MESSAGES", question).replace("V", value)[:-1] + ', "max_tokens": 1}'
        check(client.post(CHAT, content=body.encode()), set(ChatBody.model_fields) & words(form))


def words(form):
    return set(re.findall(r"\w+", form)) | {"messages"}


def test_every_field_says_what_it_may_be():
    for body in BODIES.values():
        for name, field in body.model_fields.items():
            assert field.description, name

"""The log has one line for each request, written when the request has ended."""

from __future__ import annotations

import logging
import re
import socket
import time

import httpx
import pytest

from kinfolk.text.stream import TextStream

CHAT = "/v1/chat/completions"
COMPLETE = "/v1/completions"


def from_us(records):
    """Our log records, without those of libraries, whose level another test may have set."""
    return [record for record in records if record.name.startswith("kinfolk.server")]


@pytest.fixture
def lines(caplog):
    """``lines(count)``: the log lines of requests, once there are exactly so many."""
    caplog.set_level(logging.DEBUG, "kinfolk.server")

    def read(count, level=logging.INFO):
        deadline = time.monotonic() + 5
        while len(ours := from_us(caplog.records)) < count:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0.01)
        assert len(ours) == count, caplog.text
        assert {record.levelno for record in ours} <= {level}
        return [record.getMessage() for record in ours]

    return read


def test_an_answer_leaves_a_line(make_client, make_engine, user, lines):
    client = make_client(make_engine("Hello", " there"))
    client.post(CHAT, json=user(), headers={"X-Request-Id": "mine"})
    (line,) = lines(1)
    assert re.fullmatch(
        rf"POST {CHAT} 200, \d+ prompt tokens \(3 cached\), [1-9]\d* completion tokens, stop, "
        r"6 of 8 drafted tokens accepted in 2 steps, 4\.00 tokens a step \(100 100 50 50 %\), "
        r"\d+\.\d\d s, client testclient:\d+, mine",
        line,
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_a_stream_leaves_its_line_at_its_end(
    make_service, make_engine, run_server, user, lines, path
):
    running = run_server(make_service(make_engine("Hello", 0.3, " there")))
    body = {**(user() if path == CHAT else {"prompt": "Hi"}), "stream": True}
    with httpx.stream("POST", running.url + path, json=body) as response:
        chunks = response.iter_bytes()
        assert next(chunks)
        assert lines(0) == []
        assert b"[DONE]" in b"".join(chunks)
    (line,) = lines(1)
    assert line.startswith(f"POST {path} 200, ")
    assert re.search(r" [1-9]\d* completion tokens, stop, ", line)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/health", 200), ("GET", "/v1/nothing", 404), ("GET", CHAT, 405), ("POST", CHAT, 400)],
)
def test_what_is_no_answer_leaves_a_line_too(make_client, make_engine, lines, method, path, status):
    make_client(make_engine("x")).request(method, path)
    (line,) = lines(1)
    assert re.fullmatch(rf"{method} {path} {status}, 0\.\d\d s, client \S+, req_\w+", line)


def test_who_has_no_key_leaves_a_line(make_client, make_engine, lines):
    make_client(make_engine("x"), api_keys=("k",)).post(CHAT)
    assert f"POST {CHAT} 401, " in lines(1)[0]


def test_several_answers_are_counted_together(make_client, make_engine, lines, text):
    prompts = ["a", "b b b"]
    make_client(make_engine("x")).post(COMPLETE, json={"prompt": prompts, "n": 2})
    tokens = sum(len(text[0].encode(prompt)) for prompt in prompts)
    assert f"{tokens} prompt tokens (6 cached), 8 completion tokens, stop, " in lines(1)[0]


def test_a_failure_is_told_in_the_line(make_client, make_engine, user, broken, lines):
    client = make_client(make_engine("Hello", 0.3, broken))
    client.post(CHAT, json=user(stream=True))
    assert re.search(r" 200, .* [1-9]\d* completion tokens, engine_error, ", lines(1)[0])


def test_a_client_that_leaves_is_told_in_the_line(
    run_server, make_service, make_engine, user, lines
):
    running = run_server(make_service(make_engine(*([" word", 0.05] * 600))))
    with httpx.stream("POST", running.url + CHAT, json=user(stream=True)) as response:
        assert next(response.iter_bytes())
    (line,) = lines(1)
    assert re.search(
        r"200, \d+ prompt tokens, \d+ completion tokens, the client disconnected, ", line
    )


def test_a_path_cannot_write_lines_of_its_own(run_server, make_service, make_engine, lines):
    running = run_server(make_service(make_engine("x")))
    httpx.get(running.url + "/a%0d%0aPOST%20/v1/x%20200%1b[31m")
    (line,) = lines(1)
    assert line.isprintable()
    assert line.startswith("GET /a%0D%0APOST%20/v1/x%20200%1B%5B31m 404, ")


@pytest.mark.parametrize("sent", [b"", b"{", b'{"messages": ['])
def test_a_client_that_leaves_while_it_sends_is_one_line_for_those_who_look_closely(
    run_server, make_service, make_engine, lines, caplog, sent
):
    running = run_server(make_service(make_engine("x")))
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
        sock.sendall(head.encode() + sent)
        time.sleep(0.2)
    (line,) = lines(1, logging.DEBUG)
    assert line.startswith(f"POST {CHAT} 499, the client disconnected while sending, ")
    time.sleep(0.1)
    assert "Traceback" not in caplog.text
    assert {record.name for record in from_us(caplog.records)} == {"kinfolk.server.request_log"}


def test_a_bug_is_traced_once_and_answered_in_form(
    run_server, make_service, make_engine, user, caplog
):
    running = run_server(make_service(make_engine("x", refuse=ZeroDivisionError("secret"))))
    headers = {"Origin": "http://localhost:3000", "X-Request-Id": "mine"}
    response = httpx.post(running.url + CHAT, json=user(), headers=headers)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == "mine"
    assert "access-control-allow-origin" in response.headers
    time.sleep(0.1)
    assert caplog.text.count("Traceback") == 1


def test_text_that_cannot_be_made_ends_its_own_stream(
    make_service, make_engine, run_server, user, read_stream, monkeypatch, text
):
    feed = TextStream.feed
    (bad,) = text[0].encode("!", add_bos=False)

    def feed_all_but(self, tokens):
        if bad in tokens:
            raise ZeroDivisionError("secret")
        return feed(self, tokens)

    monkeypatch.setattr(TextStream, "feed", feed_all_but)
    engine = make_engine()
    tokens = {name: text[0].encode(name, add_bos=False) for name in ("Hello", "!", " there")}
    engine.reply = lambda request: [
        tuple(tokens["Hello"]),
        0.3,
        *([(bad,)] if request.max_new == 7 else []),
        tuple(tokens[" there"]),
    ]
    running = run_server(make_service(engine))
    with httpx.stream("POST", running.url + CHAT, json=user(stream=True)) as other:
        failed = read_stream(httpx.post(running.url + CHAT, json=user(stream=True, max_tokens=7)))
        assert failed.events[-1]["error"]["type"] == "server_error"
        assert "secret" not in str(failed.events)
        other.read()
        (choice,) = read_stream(other).check_chat()
    assert choice["content"] == "Hello there"

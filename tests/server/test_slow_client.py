"""A client that reads slowly, or not at all, delays nobody else."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest

from kinfolk.server.lifecycle import bind

STEPS, WORDS = 400, 150


def open_stream(running) -> socket.socket:
    """A stream that nothing is read of; the kernel keeps little of it."""
    host, port = running.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    body = json.dumps({"prompt": "Hi", "stream": True, "max_tokens": 10**6}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


@pytest.fixture
def small_buffers(monkeypatch, run_server):
    """The kernel keeps little of what a server sends."""

    def small(host, port):
        sock = bind(host, port)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return sock

    monkeypatch.setitem(run_server.__globals__, "bind", small)


def make(make_service, make_engine, **options):
    engine = make_engine(*[" word" * WORDS, 0.001] * STEPS, stops=False)
    return engine, make_service(engine, runtime={"context": 2 * 10**6}, **options)


def test_a_client_that_reads_nothing_is_given_up_and_others_go_on(
    run_server, small_buffers, make_service, make_engine
):
    engine, service = make(make_service, make_engine, write_timeout=1.0)
    running = run_server(service)
    with open_stream(running):
        deadline = time.monotonic() + 30
        while not engine.requests:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        body = {"prompt": "Hi", "max_tokens": 10**6}
        answer = httpx.post(running.url + "/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["text"].count(" word") == STEPS * WORDS
        while service.in_flight:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert service.finished["length"] == 1, "the other stream was not completed"
    # The engine was not held up: it has emitted everything, or was told to stop.
    assert len(engine.wait_until_ended(2)) == 2


def test_a_client_that_reads_later_gets_everything_in_few_pieces(
    run_server, small_buffers, make_service, make_engine
):
    engine, service = make(make_service, make_engine)
    running = run_server(service)
    with open_stream(running) as sock:
        engine.wait_until_ended(1, seconds=60)
        time.sleep(0.2)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = sock.recv(2**16)
            assert piece
            received += piece
    assert b"[DONE]" in received
    assert received.count(b" word") == STEPS * WORDS
    assert received.count(b"data: ") < STEPS, "what has waited is one event"

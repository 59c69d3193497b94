"""Start of the server, and shutdown while requests run."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time

import httpx
import pytest
from starlette.testclient import TestClient

from kinfolk.errors import SettingsError
from kinfolk.server.app import create_app
from kinfolk.server.lifecycle import GracefulServer, bind

CHAT = "/v1/chat/completions"


def test_a_port_that_is_taken_is_told_by_name():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}.*--port"):
            bind("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_told_by_name():
    with pytest.raises(SettingsError, match=r"no-such-host\.invalid"):
        bind("no-such-host.invalid", 0)


@pytest.mark.parametrize("host", ["a..b", "a" * 300, "a\udc80", "", "http://localhost"])
def test_a_host_that_can_be_none_is_told(host):
    with pytest.raises(SettingsError, match=r"cannot listen on .*--host") as caught:
        bind(host, 0)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("port", [-1, 65536, 99999, 2**40])
def test_a_port_that_there_is_not_is_no_other_port(port):
    with pytest.raises(SettingsError, match=f"--port.*65535, got {port}"):
        bind("127.0.0.1", port)


def test_a_port_that_was_taken_while_the_model_was_loaded_is_told(make_service, make_engine):
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = bind("127.0.0.1", port)
    with first, second:
        first.listen()
        with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}: .*in use"):
            GracefulServer(make_service(make_engine("x"))).run([second])


@pytest.fixture
def ask():
    """Send a request in a thread; its answer is in ``.response`` once joined."""

    class Asking(threading.Thread):
        def __init__(self, url, body):
            super().__init__(daemon=True)
            self.url, self.body = url, body
            self.response = None

        def run(self):
            self.response = httpx.post(self.url, json=self.body, timeout=30)

    def start(running, body, path=CHAT):
        thread = Asking(running.url + path, body)
        thread.start()
        deadline = time.monotonic() + 5
        while running.service.in_flight == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return thread

    return start


def test_answers_that_run_may_finish(run_server, make_service, make_engine, user, ask):
    running = run_server(make_service(make_engine("Hello", 0.5, " again"), grace=10.0))
    asking = ask(running, user())
    running.server.handle_exit(signal.SIGINT, None)
    running.thread.join(10)
    asking.join(5)
    assert asking.response.json()["choices"][0]["message"]["content"] == "Hello again"


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_do_not_finish_in_time_are_ended_with_a_reason(
    run_server, make_service, make_engine, user, ask, stream
):
    engine = make_engine("Hello", *([0.05, " word"] * 600))
    running = run_server(make_service(engine, grace=0.3))
    asking = ask(running, user(stream=stream, max_tokens=200))
    time.sleep(0.5)
    running.server.handle_exit(signal.SIGTERM, None)
    running.thread.join(10)
    assert not running.thread.is_alive()
    asking.join(5)
    if stream:
        assert asking.response.text.endswith("data: [DONE]\n\n")
    assert asking.response.status_code == (200 if stream else 503)
    assert "shutting down" in asking.response.text
    assert engine.wait_until_ended(1)[0].reason.value == "cancelled"


def test_new_work_on_an_old_connection_is_refused(run_server, make_service, make_engine, user):
    running = run_server(make_service(make_engine("x")))
    with httpx.Client(base_url=running.url) as client:
        assert client.get("/health").status_code == 200
        running.service.draining = True
        response = client.post(CHAT, json=user())
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        assert client.get("/health").status_code == 503


@pytest.fixture
def told(monkeypatch):
    """The messages of servers, and the exit codes with which they would have ended at once."""
    said, left = [], []
    monkeypatch.setattr("kinfolk.server.lifecycle.os._exit", left.append)
    return said, left


def wait_for(said, count):
    deadline = time.monotonic() + 5
    while len(said) < count:
        assert time.monotonic() < deadline, said
        time.sleep(0.01)
    return said[-1]


@pytest.mark.parametrize("requests", [0, 1, 2])
def test_the_first_signal_is_answered_with_what_is_in_flight(
    run_server, make_service, make_engine, user, ask, told, requests
):
    said, _ = told
    running = run_server(make_service(make_engine("Hello", 0.6), grace=7.5))
    running.server.notify = said.append
    # Three answers to one request are one request.
    asking = [ask(running, user(n=3)) for _ in range(requests)]
    while running.service.requests < requests:
        time.sleep(0.01)
    running.server.handle_exit(signal.SIGINT, None)
    told_so = wait_for(said, 1)
    if not requests:
        assert told_so == "stopping: no request is in flight"
    else:
        count = ["1 request", "2 requests"][requests - 1]
        assert told_so == (
            f"stopping: {count} in flight, with 7.5 s to finish; Ctrl-C again aborts them"
        )
    running.thread.join(10)
    for each in asking:
        each.join(5)
        assert each.response.status_code == 200
    assert running.server.exit_code == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_second_signal_ends_every_answer_with_an_error(
    run_server, make_service, make_engine, user, ask, told, path, stream
):
    said, left = told
    engine = make_engine("Hello", *([0.05, " word"] * 600))
    running = run_server(make_service(engine, grace=600.0))
    running.server.notify = said.append
    body = {**(user() if path == CHAT else {"prompt": "Hi"}), "stream": stream, "max_tokens": 200}
    asking = ask(running, body, path)
    time.sleep(0.4)
    running.server.handle_exit(signal.SIGINT, None)
    wait_for(said, 1)
    assert running.thread.is_alive()
    running.server.handle_exit(signal.SIGTERM, None)
    assert wait_for(said, 2) == "1 request aborted; Ctrl-C again exits immediately"
    running.thread.join(10)
    assert not running.thread.is_alive()
    asking.join(5)
    assert running.server.exit_code == 128 + signal.SIGTERM
    assert left == []
    if stream:
        assert asking.response.status_code == 200
        *_, event, done, end = asking.response.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        error = json.loads(event.removeprefix("data: "))["error"]
    else:
        assert asking.response.status_code == 503
        error = asking.response.json()["error"]
    assert (error["code"], error["type"]) == ("draining", "unavailable_error")
    assert engine.wait_until_ended(1)[0].reason.value == "cancelled"


def test_a_third_signal_waits_for_nobody(run_server, make_service, make_engine, user, ask, told):
    _, left = told
    running = run_server(make_service(make_engine("Hello", 0.5), grace=600.0))
    ask(running, user())
    for _ in range(3):
        running.server.handle_exit(signal.SIGINT, None)
    assert left == [130]


def test_a_request_that_comes_in_between_is_cut_off_too(make_service, make_engine, user):
    service = make_service(make_engine("Hello", 30.0))
    client = TestClient(create_app(service))
    service.abort_all()
    assert client.post(CHAT, json=user()).status_code == 503


def test_a_second_signal_leaves_at_once(run_server, make_service, make_engine, monkeypatch):
    running = run_server(make_service(make_engine("x")))
    left = []
    monkeypatch.setattr("kinfolk.server.lifecycle.os._exit", left.append)
    running.server.handle_exit(signal.SIGINT, None)
    running.server.handle_exit(signal.SIGINT, None)
    assert left == [130]

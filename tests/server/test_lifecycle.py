"""Starting, and leaving with work in hand."""

from __future__ import annotations

import signal
import socket
import threading
import time

import httpx
import pytest

from kinfolk.errors import SettingsError
from kinfolk.server.lifecycle import bind

CHAT = "/v1/chat/completions"


def test_a_port_that_is_taken_is_told_by_name():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}.*--port"):
            bind("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_told_by_name():
    with pytest.raises(SettingsError, match=r"no-such-host\.invalid"):
        bind("no-such-host.invalid", 0)


@pytest.fixture
def ask():
    """Send a request in a thread; its answer is in ``.response`` once joined."""

    class Asking(threading.Thread):
        def __init__(self, url, body):
            super().__init__(daemon=True)
            self.url, self.body = url, body
            self.response = None

        def run(self):
            self.response = httpx.post(self.url + CHAT, json=self.body, timeout=30)

    def start(running, body):
        thread = Asking(running.url, body)
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


def test_a_second_signal_leaves_at_once(run_server, make_service, make_engine, monkeypatch):
    running = run_server(make_service(make_engine("x")))
    left = []
    monkeypatch.setattr("kinfolk.server.lifecycle.os._exit", left.append)
    running.server.handle_exit(signal.SIGINT, None)
    running.server.handle_exit(signal.SIGINT, None)
    assert left == [130]

"""A client that disconnects: its request is cancelled, and its slot becomes free."""

from __future__ import annotations

import socket
import threading
import time

import httpx
import pytest

from kinfolk.errors import RequestError

CHAT = "/v1/chat/completions"


def wait_until(holds, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


@pytest.fixture
def endless(make_engine):
    """Generates for half a minute unless it is cancelled; 200 tokens, three a step, take longer
    than any test waits for an end."""
    return make_engine(*([" word", 0.2] * 150))


def open_request(running, body: str) -> socket.socket:
    """Send a request by hand and keep the connection."""
    host, port = running.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)))
    data = body.encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


MESSAGES = '"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200'


def test_leaving_a_stream_cancels_its_generation(run_server, make_service, endless, user):
    running = run_server(make_service(endless))
    with httpx.stream("POST", running.url + CHAT, json=user(stream=True)) as response:
        assert next(response.iter_bytes())
    (end,) = endless.wait_until_ended(1)
    assert end.reason.value == "cancelled"
    assert end.usage.emitted < 200
    wait_until(lambda: running.service.in_flight == 0)
    assert running.service.finished["disconnected"] == 1


def test_leaving_before_a_whole_answer_cancels_its_generation(run_server, make_service, endless):
    running = run_server(make_service(endless))
    sock = open_request(running, "{" + MESSAGES + "}")
    wait_until(lambda: endless.requests)
    sock.close()
    (end,) = endless.wait_until_ended(1)
    assert end.reason.value == "cancelled"
    wait_until(lambda: running.service.in_flight == 0)


def test_leaving_while_the_engine_takes_a_request_cancels_it(run_server, make_service, endless):
    entered, go, submit = threading.Event(), threading.Event(), endless.submit

    def slow(*operands):
        entered.set()
        assert go.wait(10)
        return submit(*operands)

    endless.submit = slow
    running = run_server(make_service(endless))
    sock = open_request(running, "{" + MESSAGES + "}")
    assert entered.wait(5)
    sock.close()
    time.sleep(0.4)
    go.set()
    (end,) = endless.wait_until_ended(1)
    assert end.reason.value == "cancelled"
    wait_until(lambda: running.service.in_flight == 0)


def test_a_request_that_the_engine_refuses_has_not_been_left(
    run_server, make_service, endless, user
):
    endless.refuse = RequestError("no")
    running = run_server(make_service(endless))
    assert httpx.post(running.url + CHAT, json=user()).status_code == 400
    assert running.service.in_flight == 0
    assert not running.service.finished["disconnected"]


def test_leaving_in_silence_is_noticed(run_server, make_service, make_engine):
    """A long prompt sends nothing for a while, so no write can fail."""
    silent = make_engine(30.0, "late")
    running = run_server(make_service(silent))
    sock = open_request(running, "{" + MESSAGES + ', "stream": true}')
    wait_until(lambda: silent.requests)
    time.sleep(0.4)
    sock.close()
    assert silent.wait_until_ended(1)[0].reason.value == "cancelled"


def test_leaving_the_queue_gives_up_the_place(run_server, make_service, make_engine, user):
    engine = make_engine(*([" word", 0.05] * 600), slots=1)
    running = run_server(make_service(engine, slots=1))
    first = open_request(running, "{" + MESSAGES + ', "stream": true}')
    wait_until(lambda: len(engine.requests) == 1)
    second = open_request(running, "{" + MESSAGES + "}")
    wait_until(lambda: len(engine.requests) == 2)
    second.close()
    (end,) = engine.wait_until_ended(1)
    assert (end.request_id, end.usage.emitted) == (engine.requests[1].id, 0)
    wait_until(lambda: running.service.in_flight == 1)
    first.close()
    engine.wait_until_ended(2)


def test_all_choices_of_a_request_are_cancelled(run_server, make_service, endless, user):
    running = run_server(make_service(endless))
    body = user(stream=True, n=3)
    with httpx.stream("POST", running.url + CHAT, json=body) as response:
        assert next(response.iter_bytes())
    assert {end.reason.value for end in endless.wait_until_ended(3)} == {"cancelled"}


def test_a_full_queue_is_told_and_frees_up(run_server, make_service, endless, user):
    running = run_server(make_service(endless, slots=1, max_queue=1))
    socks = [open_request(running, "{" + MESSAGES + "}") for _ in range(2)]
    wait_until(lambda: running.service.in_flight == 2)
    refused = httpx.post(running.url + CHAT, json=user())
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    for sock in socks:
        sock.close()
    wait_until(lambda: running.service.in_flight == 0)
    endless.reply = lambda request: []
    assert httpx.post(running.url + CHAT, json=user()).status_code == 200


def test_more_choices_than_the_server_could_ever_take_are_no_matter_of_waiting(
    make_client, make_engine, user
):
    client = make_client(make_engine("x"), slots=1, max_queue=2)
    response = client.post(CHAT, json=user(n=4))
    assert response.status_code == 400
    assert "at most 3" in response.json()["error"]["message"]


def test_a_silent_stream_is_kept_alive_by_comments(
    run_server, make_service, make_engine, user, read_stream
):
    running = run_server(make_service(make_engine(0.9, "late"), ping_after=0.1))
    response = httpx.post(running.url + CHAT, json=user(stream=True))
    stream = read_stream(response)
    assert len(stream.comments) >= 3
    assert stream.check_chat() == [{"content": "late", "finish": "stop"}]


def test_health_answers_while_answers_run(run_server, make_service, endless, user):
    running = run_server(make_service(endless))
    done = threading.Event()

    def read():
        with httpx.stream("POST", running.url + CHAT, json=user(stream=True)) as response:
            for _ in response.iter_bytes():
                if done.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: endless.requests)
    assert httpx.get(running.url + "/health").json() == {"status": "ok"}
    done.set()
    reader.join(5)
    assert not reader.is_alive()

"""``kinfolk bench --http``: figures of streams, the client, and the server that it starts."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from kinfolk.cli.bench_http import Streams, percentiles, report_of
from kinfolk.cli.http_streams import Address, Round, StreamTimes, play
from kinfolk.errors import EngineError, SettingsError

STREAMS = Streams(2, 16, 4)


def test_percentiles_are_measured_values_in_milliseconds():
    seconds = [0.001 * number for number in range(1, 101)]
    assert percentiles(seconds, 50, 95, 99) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert percentiles([0.5], 50, 99) == {"p50": 500.0, "p99": 500.0}
    assert percentiles([], 50) is None


def test_the_report_has_all_tokens_and_those_of_the_time_when_every_stream_generated():
    early = StreamTimes((1.0, 2.0, 3.0, 4.0), 4)
    late = StreamTimes((2.0, 3.0, 4.0, 5.0), 4)
    row = report_of(STREAMS, [Round((early, late), 8.0)])
    assert row["tokens_per_second"] == 1.0
    # From 2 to 4 seconds: two tokens of each.
    assert row["generate_tokens_per_second"] == 2.0
    assert row["first_token_milliseconds"] == {"p50": 1000.0, "p95": 2000.0}
    assert row["gap_milliseconds"] == {"p50": 1000.0, "p95": 1000.0, "p99": 1000.0}
    assert (row["errors"], row["error"]) == (0, None)


def test_failed_streams_are_counted_and_left_out():
    whole, short = StreamTimes((1.0, 2.0, 3.0, 5.0), 4), StreamTimes((1.0,), 1)
    failed = StreamTimes((0.1,), 0, "the engine failed")
    row = report_of(STREAMS, [Round((whole, failed), 4.0), Round((whole, short), 4.0)])
    assert row["tokens_per_second"] == 1.0
    assert row["first_token_milliseconds"] == {"p50": 1000.0, "p95": 1000.0}
    assert (row["errors"], row["error"]) == (2, "the engine failed")
    row = report_of(STREAMS, [Round((failed, failed), 4.0)])
    assert (row["tokens_per_second"], row["gap_milliseconds"], row["errors"]) == (None, None, 2)


def test_no_two_prompts_begin_alike():
    bodies = [body for seed in range(3) for body in STREAMS.bodies(seed, 10**6)]
    assert len({body["prompt"][0] for body in bodies}) == 6
    assert {len(body["prompt"]) for body in bodies} == {16}


@pytest.mark.parametrize(
    "url", ["localhost:80", "https://a", "http://", "http://a/x", "http://a:b"]
)
def test_an_address_that_can_be_none_is_told(url):
    with pytest.raises(SettingsError, match="--url"):
        Address.parse(url)


@pytest.mark.parametrize("url", ["http://a:81", "http://a:81/", "http://a:81/v1"])
def test_an_address_may_end_like_that_of_a_client(url):
    assert Address.parse(url) == Address("a", 81)


def answering(*pieces: bytes, pause: float = 0.0):
    """The address of a server that answers one connection with these pieces, and closes it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run():
        with listening, listening.accept()[0] as connection:
            connection.recv(2**16)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)

    threading.Thread(target=run, daemon=True).start()
    return Address(*listening.getsockname())


def ask(address):
    return asyncio.run(play(address, [{}])).answers[0]


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(**fields) -> bytes:
    return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n\n"


A = event(choices=[{"text": "a"}])
B = event(choices=[{"text": ""}])
USAGE = event(usage={"completion_tokens": 7})
DONE = b"data: [DONE]\n\n"


def test_events_are_read_however_they_are_cut():
    body = b": ping\n\n" + A + B + A + USAGE + DONE
    pieces = [chunked(body[place : place + 1]) for place in range(len(body))]
    answer = ask(answering(HEAD, *pieces, b"0\r\n\r\n"))
    assert (len(answer.times), answer.tokens, answer.error) == (2, 7, None)


def test_each_event_has_the_time_of_its_arrival():
    answer = ask(answering(HEAD, chunked(A), chunked(A + A), b"0\r\n\r\n", pause=0.1))
    assert answer.error == "the stream ended without [DONE]"
    first, second, third = answer.times
    assert 0.05 < second - first < 1
    assert second == third


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([], "closed before the answer's end"),
        ([HEAD, chunked(A)], "closed before the answer's end"),
        ([b"nonsense\r\n\r\n"], "not valid HTTP"),
        ([HEAD, chunked(event(error={"message": "no room"}) + DONE), b"0\r\n\r\n"], "no room"),
        (
            [b'HTTP/1.1 429 X\r\nContent-Length: 31\r\n\r\n{"error":{"message":"is full"}}'],
            "is full",
        ),
        ([b"HTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\nx"], "status 500"),
    ],
)
def test_a_stream_that_fails_says_why(pieces, error):
    assert error in ask(answering(*pieces)).error


def test_a_server_that_is_not_there_is_told():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = Address(*sock.getsockname())
    with pytest.raises(EngineError, match=f"cannot connect to {address}"):
        ask(address)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--http", "--prompt", 5), "--prompt does not go with --http; use --prompts"),
        (("--streams", "4"), "--streams goes only with --http"),
        (("--http", "--streams", "1,x"), "'1,x' is not a list like 1,4,16."),
        (("--http", "--prompts", "0"), "'0' is not a list like 1,4,16."),
        (("--http", "--api-key", "k"), "--api-key goes only with --url"),
        (("--http", "--url", "http://a", "--slots", 2), "leave --slots out"),
        (("--http", "--url", "http://a", "-m", "x.gguf"), "leave a model out"),
        (("--http", "--url", "a"), "--url must be like http://127.0.0.1:8080"),
        (("--http", "--prompts", 10**7), "positions"),
        (("--http", "-m", "not-even-there.gguf"), "no such file"),
    ],
)
def test_mistakes_are_told_before_a_server_is_started(kinfolk, words, said):
    result = kinfolk("bench", *words)
    assert result.exit_code == 2 or result.exception is not None
    assert said in (result.stderr or "") + str(result.exception)


SMALL = ("--http", "--streams", "1,2", "--prompts", "3,5", "--generate", 4, "--repeats", 2)


def test_a_server_of_its_own_is_measured_and_stopped(program, model):
    before = children()
    done = program("bench", "-m", model, *SMALL, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert [(row["prompt"], row["streams"]) for row in report["rows"]] == [
        (3, 1), (3, 2), (5, 1), (5, 2)
    ]  # fmt: skip
    for row in report["rows"]:
        assert (row["errors"], row["error"], row["repeats"]) == (0, None, 2)
        first, gap = row["first_token_milliseconds"], row["gap_milliseconds"]
        assert 0 < first["p50"] <= first["p95"]
        assert 0 <= gap["p50"] <= gap["p95"] <= gap["p99"]
        assert row["tokens_per_second"] > 0
    assert children() == before


def children() -> set[int]:
    """Processes that serve."""
    return {
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "serve" in (process.info["cmdline"] or ()) and "--port" in process.info["cmdline"]
    }


def test_a_server_that_cannot_start_is_told_with_its_reason(program, model):
    done = program("bench", "-m", model, *SMALL, "--op", "rope=nothing-of-that-name")
    assert done.returncode == 2
    assert "nothing-of-that-name" in done.stderr
    done = program("bench", "-m", model, *SMALL, "--memory", "0.000001")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the server did not start: ")
    assert "does not fit" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_server_too(model, tmp_path, number):
    words = ("--http", "--streams", "1", "--prompts", "3", "--generate", 400)
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", "bench", "-m", str(model), *map(str, words)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (started := psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert not any(server.is_running() for server in started)

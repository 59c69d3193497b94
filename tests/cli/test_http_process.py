"""``kinfolk serve`` is two processes: neither stays when the other has ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from compression_scenes import story

from kinfolk.cli.http_process import HttpProcess


@pytest.fixture
def serve(model, tmp_path):
    """``serve()``: the program, its HTTP process and its address."""
    started = []

    def run(*options):
        words = ("serve", "-m", model, "--port", 0, "--context", 4096, *options)
        process = subprocess.Popen(
            [sys.executable, "-m", "kinfolk", *map(str, words)],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        line = process.stderr.readline()
        found = re.search(r"http://\S+/v1", line)
        assert found, line + process.stderr.read()
        (http,) = psutil.Process(process.pid).children()
        started.append(http)
        return process, http, found[0]

    yield run
    for process in started:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        if isinstance(process, subprocess.Popen):
            process.communicate()


BODY = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture
def stream():
    """``stream(url)``: the lines of an endless answer, read in a thread from when they begin."""

    def start(url):
        lines, begun = [], threading.Event()

        def read():
            # Where a process is killed, the connection breaks.
            with (
                suppress(httpx.RemoteProtocolError),
                httpx.stream("POST", url + "/completions", json=BODY, timeout=60) as response,
            ):
                for line in response.iter_lines():
                    lines.append(line)
                    begun.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert begun.wait(60)
        return lines, reader

    return start


def test_clients_can_connect_as_soon_as_the_address_is_told(serve):
    _, _, url = serve()
    assert httpx.get(url + "/health").status_code == 200


def test_the_http_process_imports_no_torch(serve):
    process, http, _ = serve()
    assert "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    assert "libtorch" not in Path(f"/proc/{http.pid}/maps").read_text()


def test_if_the_http_process_dies_the_program_ends_with_an_error(serve, stream):
    process, http, url = serve()
    stream(url)
    http.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors == "error: the HTTP server has ended unexpectedly: exit code -9\n"


def test_if_the_engines_process_dies_streams_end_with_an_error(serve, stream):
    process, http, url = serve()
    lines, reader = stream(url)
    process.kill()
    http.wait(30)
    reader.join(10)
    assert lines[-2:] == ["data: [DONE]", ""]
    assert "the engine's process has ended" in lines[-4]


def test_a_third_signal_ends_both_at_once(serve, stream):
    process, http, url = serve("--shutdown-grace", 600)
    stream(url)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.wait(30) == 130
    assert not http.is_running()


def test_a_server_that_a_signal_met_after_its_end_gives_the_usual_code(monkeypatch):
    http = HttpProcess.__new__(HttpProcess)
    http._process, http._ended = SimpleNamespace(wait=lambda: -signal.SIGTERM), True
    monkeypatch.setattr(HttpProcess, "_signals_passed_on", lambda self: nullcontext())
    assert http.wait() == 128 + signal.SIGTERM


def test_a_signal_while_the_model_is_loaded_leaves_no_process(model, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", "serve", "-m", str(model), "--port", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (children := psutil.Process(process.pid).children()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_prompts_are_compressed_across_the_two_processes(serve, model):
    _, _, url = serve("--prefill-compression-drafter", model, "--prefill-compression", "always")
    body = {"prompt": f"{story(250)}\n\nWhich door?", "max_tokens": 1}
    found = httpx.post(url + "/completions", json=body, timeout=60).json()["usage"]
    figures = found["prefill_compression"]
    assert figures["skipped"] is None
    assert found["prompt_tokens"] == figures["compressed_tokens"] < figures["original_tokens"] / 2
    off = {**body, "prefill_compression": "off"}
    full = httpx.post(url + "/completions", json=off, timeout=60).json()["usage"]
    assert full["prompt_tokens"] == figures["original_tokens"]


def test_the_status_crosses_the_two_processes_while_an_answer_runs(serve, stream):
    """The engine's counters and its running request are told by the process of the server."""
    process, _, url = serve("--slots", 2, "--cache-memory", 1)
    page = url.removesuffix("/v1") + "/status"
    stream(url)
    with httpx.stream("GET", page + "/events", timeout=60) as response:
        told = (json.loads(line[6:]) for line in response.iter_lines() if line[:6] == "data: ")
        first = next(each for each in told if each["running"])
        (running,) = first["running"]
        assert (running["slot"], first["slots"], first["server"]["in_flight"]) == (1, 2, 1)
        assert first["model"]["device"].startswith("cpu")
        assert first["cache"]["places"][1]["most_bytes"] == 2**30
        later = next(each for each in told if each["running"][0]["generated"] > 50)
        assert later["running"][0]["id"] == running["id"]
        assert later["engine"]["steps"] > first["engine"]["steps"]
    # Whoever watches does not keep the program from ending.
    with httpx.stream("GET", page + "/events", timeout=60) as response:
        lines = response.iter_lines()  # dropping this would close the connection
        next(lines)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)

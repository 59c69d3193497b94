"""A server that has ended, in order or not, leaves its chats on the disk for the next one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import httpx
import pytest

from kinfolk.state.disk_admin import PrefixFolder

PATIENCE = 60.0
QUESTION = "How many stones does the river carry to the sea in a year? " * 8


@pytest.fixture
def serve(chat_model, tmp_path):
    """``serve()``: the program, and the address of its API."""
    started = []

    def run():
        words = ("serve", "-m", chat_model, "--device", "cpu", "--port", 0, "--context", 2048)
        words += ("--cache-memory", 0.1, "--cache-disk", 0.1, "--cache-dir", tmp_path)
        process = subprocess.Popen(
            [sys.executable, "-m", "kinfolk", *map(str, words)],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        said = [process.stderr.readline()]
        while not (found := re.search(r"http://\S+/v1", said[-1])):
            said.append(process.stderr.readline())
            assert said[-1], said
        return process, found[0]

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(url, messages):
    """The answer, and the usage of the prompt."""
    body = {"messages": messages, "max_tokens": 4, "temperature": 0}
    found = httpx.post(f"{url}/chat/completions", json=body, timeout=60).raise_for_status().json()
    return found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens_details"]


@pytest.mark.parametrize(
    "end", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_chat_goes_on_with_the_next_server(serve, tmp_path, end):
    process, url = serve()
    messages = [{"role": "user", "content": QUESTION}]
    answer, details = ask(url, messages)
    assert details["cached_tokens"] == 0
    points = tmp_path / "prefix"
    deadline = time.monotonic() + PATIENCE
    while end is signal.SIGKILL and len(list(points.glob("*/points/*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(end)
    process.wait(PATIENCE)
    assert PrefixFolder(points).check(lambda *_: None) == []
    _, url = serve()
    more = [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    _, details = ask(url, messages + more)
    assert details["cached_tokens"] > 100
    assert details["cached_tokens_from"] == {"disk": details["cached_tokens"]}

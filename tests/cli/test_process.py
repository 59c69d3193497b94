"""The program as a shell sees it: exit codes, signals, pipes."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from array import array

import httpx
import pytest

PIPED = {"capture_output": True, "text": True, "timeout": 60}
KINFOLK = [sys.executable, "-m", "kinfolk"]


@pytest.fixture
def start(tmp_path):
    """``start("serve", ...)``: the program in the background; killed when the test ends."""
    started = []

    def run(*arguments):
        process = subprocess.Popen(
            [*KINFOLK, *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            # A shell's background jobs, and all processes that they start, ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_the_program_answers_and_ends_with_0(program, model):
    done = program("run", "-m", model, "-n", 3, "--temperature", 0, "def f(x):")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("def f(x):")


def test_a_log_says_that_it_loads_before_torch_is_imported(program, model):
    """A reader of the log then sees at once why the start takes time."""
    hook = "import sys; sys.modules['torch'] = None; from kinfolk.cli.main import main; main()"
    words = ("run", "-m", model, "--log-level", "info", "Hi")
    done = subprocess.run([sys.executable, "-c", hook, *map(str, words)], **PIPED)
    assert done.stderr.startswith(f"INFO: kinfolk.cli.loading: loading {model}\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["run", "x.gguf"], 2), (["run", "--no-such-option"], 2), (["nothing"], 2), (["--help"], 0)],
)
def test_exit_codes_reach_the_shell_without_tracebacks(program, arguments, code):
    done = program(*arguments, stdin=subprocess.DEVNULL)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_with_130_whatever_is_being_imported(tmp_path, monkeypatch):
    """Imports of torch run strings, which Python ends differently."""
    hook = """import sys
class Interrupt:
    def find_spec(name, path, target=None):
        if name == "kinfolk.cli.doctor":
            exec("raise KeyboardInterrupt")
sys.meta_path.insert(0, Interrupt)
"""
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run([*KINFOLK, "doctor"], **PIPED)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_signal_ends_a_command_that_waits_for_the_reader_of_its_output(start, model):
    process = start("tokenize", "-m", model, "--text", "one two three " * 6000)
    waiting, deadline = array("i", [0]), time.monotonic() + 60
    before = -1
    while not 0 < waiting[0] == before:  # the pipe is full
        assert time.monotonic() < deadline
        before = waiting[0]
        time.sleep(0.5)
        fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143


def test_stdin_that_is_not_there_is_an_empty_prompt(program, model):
    done = program("run", "-m", model, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr == "error: the prompt is empty; send at least one token\n"


def test_a_pipe_that_closes_ends_the_program_quietly(model):
    command = [*KINFOLK, "run", "-m", str(model), "-n", "2000", "--ignore-eos", "Hi"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.read(5)
    process.stdout.close()
    assert process.wait(60) != 0
    errors = process.stderr.read()
    process.stderr.close()
    assert "Traceback" not in errors
    assert "bug" not in errors


def test_interruption_ends_a_run_with_130(start, model):
    process = start("run", "-m", model, "-n", 3000, "--ignore-eos", "--context", 4096, "Hi")
    assert process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.fixture
def serve(start, model):
    """A running server: the process, and its address."""

    def run(*options):
        process = start("serve", "-m", model, "--port", 0, "--context", 4096, *options)
        line = process.stderr.readline()
        found = re.search(r"http://\S+/v1", line)
        assert found, line + process.stderr.read()
        url = found[0]
        deadline = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(url + "/health").status_code == 200
                return process, url
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    return run


def test_serve_says_where_it_listens_and_answers_there(serve):
    process, url = serve("--api-key", "secret", "--name", "mine")
    headers = {"Authorization": "Bearer secret"}
    (model,) = httpx.get(url + "/models", headers=headers).json()["data"]
    assert model["id"] == "mine"
    assert httpx.get(url + "/models").status_code == 401
    body = {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
    answer = httpx.post(url + "/completions", json=body, headers=headers).json()
    assert answer["usage"]["completion_tokens"] == 3
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize("log", ["read", "broken"])
def test_ctrl_c_ends_running_answers_after_the_grace(serve, log):
    """Also if who reads the log ended before: a terminal's Ctrl-C ends ``tee`` too."""
    process, url = serve("--shutdown-grace", 0.3)
    if log == "broken":
        process.stderr.close()
    got = []

    def ask():
        body = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url + "/completions", json=body, timeout=60) as response:
            got.extend(response.iter_lines())

    asking = threading.Thread(target=ask)
    asking.start()
    while not got:
        assert asking.is_alive()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    asking.join(10)
    assert got[-2:] == ["data: [DONE]", ""]
    assert "shutting down" in got[-4]


def test_a_second_ctrl_c_cuts_streams_off_with_an_error(serve):
    process, url = serve("--shutdown-grace", 600)
    begun, got = threading.Event(), []

    def ask():
        body = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url + "/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                got.append(line)
                begun.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(60)
    process.send_signal(signal.SIGINT)
    # The message comes before any request has ended: the answer would take much longer.
    said = next(line for line in process.stderr if "/health" not in line)
    assert said == (
        "stopping: 1 request in flight, with 600 s to finish; Ctrl-C again aborts them\n"
    )
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    asking.join(10)
    assert got[-2:] == ["data: [DONE]", ""]
    assert "shutting down" in got[-4]
    first, line = errors.splitlines()
    assert first == "1 request aborted; Ctrl-C again exits immediately"
    assert re.search(
        r"POST /v1/completions 200, 2 prompt tokens, \d+ completion .* draining, ", line
    )


def test_ctrl_c_with_nothing_to_do_says_so_and_ends_with_0(serve):
    process, _ = serve("--log-level", "warning")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "stopping: no request is in flight\n")


@pytest.mark.parametrize("level", [None, "warning"])
def test_a_request_leaves_one_line_unless_fewer_are_wanted(serve, level):
    process, url = serve(*(() if level is None else ("--log-level", level)))
    body = {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
    assert httpx.post(url + "/completions", json=body).status_code == 200
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if "/completions" in line]
    assert len(lines) == (level is None)
    for line in lines:
        assert re.search(
            r"POST /v1/completions 200, 2 prompt tokens \(0 cached\), 3 completion tokens, length, "
            r"\d+\.\d\d s, client 127\.0\.0\.1:\d+, req_\w+$",
            line,
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--port", port) for port in ("-1", "65536", "99999", "x")),
        *(("--shutdown-grace", time) for time in ("nan", "inf", "-1")),
        *(("--ping", time) for time in ("nan", "inf", "0")),
    ],
)
def test_an_option_that_cannot_be_is_told_before_a_model_is_loaded(kinfolk, option, value):
    result = kinfolk("serve", "-m", "not-even-there.gguf", option, value)
    assert result.exit_code == 2
    assert f"'{option}'" in result.stderr


@pytest.mark.parametrize("held", [b"\xff\xfe", b"", b"k\xc3\xa9y"])
def test_a_file_of_keys_that_is_none_is_told_before_a_model_is_loaded(kinfolk, tmp_path, held):
    path = tmp_path / "keys"
    path.write_bytes(held)
    result = kinfolk("serve", "-m", "not-even-there.gguf", "--api-key-file", path)
    assert result.exit_code == 2
    assert "key" in result.stderr
    assert "bug" not in result.stderr


def test_a_port_in_use_is_told_before_a_model_is_loaded(program, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = program("serve", "-m", tmp_path / "not-even-there.gguf", "--port", port)
    assert done.returncode == 2
    assert re.fullmatch(r"error: cannot listen on 127\.0\.0\.1:\d+: .*\n", done.stderr)


def test_an_open_address_without_a_key_is_warned_about(start, model):
    process = start("serve", "-m", model, "--port", 0, "--host", "0.0.0.0")
    assert "anyone who can reach this address" in process.stderr.readline()
    where = r" at (http://0\.0\.0\.0:\d+)/v1  \(live page: \1/status, Ctrl-C to stop\)$"
    assert re.search(where, process.stderr.readline())
    assert os.getpid() != process.pid

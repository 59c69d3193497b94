"""``kinfolk daemon`` as a program: options, streams and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

PATIENCE_SECONDS = 120
DONE, OVER = -1, -4


@pytest.fixture
def ids(tmp_path):
    """Two files of token ids."""
    paths = []
    for name, start in (("a", 5), ("b", 40)):
        path = tmp_path / f"{name}.bin"
        np.arange(start, start + 15, dtype="<i4").tofile(path)
        paths.append(path)
    return paths


def words(raw: bytes, columns: int = 1):
    return np.frombuffer(raw, "<i4").reshape(-1, columns).tolist()


def test_lines_on_stdin_are_answered_with_frames_on_stdout(kinfolk, model, ids):
    a, b = ids
    lines = f"REQ 4 SLOT 0 START {a} 4 2\nREQ 5 SLOT 1 START {b} 3 2\nSCHED_DRAIN\n"
    done = kinfolk(
        "daemon", model, "--stream-tagged", "--target-cache-slots", 2, "--ignore-eos", stdin=lines
    )
    assert done.exit_code == 0
    frames = words(done.stdout_bytes, 3)
    assert [frame[1] for frame in frames] == [4, 4, 4, 5, 5, 5, 4, 4, 4, 5, 5]
    assert [frame[2] for frame in frames if frame[2] < 0] == [OVER, OVER, DONE, DONE]
    assert "ok req=4 prompt=15 reused=0 gen=4 finish=length" in done.stderr


def test_without_tags_one_line_is_executed_after_the_other(kinfolk, model, ids):
    lines = f"{ids[0]} 3\nnonsense\n{ids[1]} 2\nexit\n"
    done = kinfolk("daemon", "-m", model, "--ignore-eos", stdin=lines)
    stream = [word for (word,) in words(done.stdout_bytes)]
    marks = [place for place, word in enumerate(stream) if word == DONE]
    assert marks == [3, 4, 7, 8]
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stream-tagged", "v3"), "'v3' is not one of 'v1', 'v2'"),
        (("--socket", "s", "--stream-fd", "3"), "--stream-fd belongs to stdin"),
        (("--stream-fd", "9077"), "--stream-fd 9077: Bad file descriptor"),
        (("--cache-slots", "0"), "--slots: must be a whole number, at least 1"),
        (("--max-queue", "-1"), "--max-queue: must be a whole number, at least 0"),
    ],
)
def test_options_that_cannot_work_are_refused(kinfolk, model, arguments, message):
    done = kinfolk("daemon", "-m", model, *arguments)
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"


def test_its_help_teaches_the_wire(kinfolk):
    text = kinfolk("daemon", "--help").output
    for word in ("SCHED_DRAIN", "[-2, id, -4]", "REQ 4 START ids.bin 100 16", "--cache-slots"):
        assert word in text


def test_stdin_that_is_closed_is_the_end_of_the_lines(model, tmp_path):
    command = f"{sys.executable} -m kinfolk daemon {model} <&-"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr


def test_ctrl_c_ends_it(model, ids, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", "daemon", str(model), "--ignore-eos"],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    process.stdin.write(f"{ids[0]} 400\n".encode())
    process.stdin.flush()
    process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


def test_the_stream_may_have_a_descriptor_of_its_own(model, ids, tmp_path):
    read, write = os.pipe()
    command = [sys.executable, "-m", "kinfolk", "daemon", str(model), "--stream-fd", str(write)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[write], cwd=tmp_path
    )
    os.close(write)
    # Stdin stays open: the program ends by itself.
    process.stdin.write(f"{ids[0]} 3\nLIST_REQUESTS\nquit\n".encode())
    process.stdin.flush()
    assert process.wait(PATIENCE_SECONDS) == 0
    with os.fdopen(read, "rb") as stream:
        marks = [word for (word,) in words(stream.read()) if word < 0]
    assert marks == [DONE] * 3
    assert process.stdout.read().decode().splitlines()[-1] == "requests 0"
    process.stdin.close()
    process.stdout.close()


def test_a_socket_serves_until_the_program_is_told_to_end(model, ids, tmp_path):
    path = tmp_path / "s"
    command = [sys.executable, "-m", "kinfolk", "daemon", str(model), "--socket", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, text=True)
    for line in process.stderr:
        if str(path) in line:
            break
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.connect(str(path))
        client.sendall(f"{ids[0]} 3\nquit\n".encode())
        found = b"".join(iter(lambda: client.recv(4096), b""))
    assert [word for (word,) in words(found) if word < 0] == [DONE] * 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 130
    assert not path.exists()
    process.stderr.close()


def test_a_reader_that_leaves_ends_the_program(model, ids, tmp_path):
    command = [sys.executable, "-m", "kinfolk", "daemon", str(model), "--ignore-eos"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    process.stdin.write(f"{ids[0]} 400\n".encode())
    process.stdin.flush()
    process.stdout.read(8)
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) != 0
    process.stdin.close()
    process.stderr.close()


def test_token_ids_are_compressed_by_a_model_that_the_line_names(kinfolk, model, tmp_path):
    tokens = np.random.default_rng(3).permutation(np.arange(10, 650)).tolist()
    path = tmp_path / "long.bin"
    np.array(tokens, "<i4").tofile(path)
    lines = f"REQ 7 compress {path} 125 {model}\nREQ 8 free drafter\nREQ 9 compress {path} 1 no\n"
    done = kinfolk("daemon", "-m", model, "--stream-tagged", stdin=lines)
    assert done.exit_code == 0
    frames = words(done.stdout_bytes, 3)
    kept = [word for _, request, word in frames if request == 7][:-1]
    rest = iter(tokens)
    assert all(token in rest for token in kept)
    assert len(kept) == 2 * 32, "of 20 passages an eighth"
    assert kept[-32:] == tokens[-32:]
    ends = [(request, word) for _, request, word in frames if word < 0]
    assert ends == [(7, -1), (8, -1), (9, -1)]
    assert "kept=64 of=640" in done.stderr
    assert "no: " in done.stderr

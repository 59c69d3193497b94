"""Files that commands write: existing files in the way, and a disk that becomes full."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest


@pytest.fixture
def tokens(tmp_path, cases):
    path = tmp_path / "tokens.npy"
    np.save(path, np.load(cases / "qwen35.npz")["tokens"])
    return path


def limited(nbytes):
    """Run in a child process: files have a size limit, as if the disk were full."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.fixture(params=["logits", "synth", "new-family"])
def writing(request, model, tokens, tmp_path):
    """A command that writes, and the name of what it writes in ``tmp_path``."""
    commands = {
        "logits": ("logits", model, "--tokens", tokens, "--out", tmp_path / "out.npy"),
        "synth": ("synth", "qwen3.5-0.8b", tmp_path / "out.gguf", "--layers", 1),
        "new-family": ("new-family", "olive", tmp_path / "out"),
    }
    return commands[request.param]


def test_a_full_disk_is_told_ends_with_1_and_leaves_nothing(program, writing, tmp_path):
    before = sorted(tmp_path.iterdir())
    done = program(*writing, preexec_fn=limited(500))
    assert done.returncode == 1
    assert f"error: {tmp_path / 'out'}" in done.stderr
    assert "cannot be written: File too large\n" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["logits", "synth", "convert"])
def test_what_is_no_file_is_not_replaced(kinfolk, model, tokens, tmp_path, command):
    """A user who names /dev/null does not want it replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = {
        "logits": ("logits", model, "--tokens", tokens, "--out", pipe),
        "synth": ("synth", "qwen3.5-0.8b", pipe, "--layers", 1, "--overwrite"),
        "convert": ("convert", tmp_path, pipe, "--overwrite"),
    }[command]
    result = kinfolk(*arguments)
    assert result.exit_code == 2
    assert f"{pipe} exists and is not a regular file" in result.stderr
    assert pipe.is_fifo()


def test_logits_take_their_room_on_the_disk_as_they_come(tmp_path):
    """If a sparse file is mapped, a full disk kills the process instead of raising an error."""
    import torch

    from kinfolk.cli.logits import write_rows

    partial = tmp_path / "out.npy.partial"
    sizes = []

    def parts():
        for _ in range(2):
            yield torch.ones(1024, 64)
            sizes.append(partial.stat().st_size)

    write_rows(tmp_path / "out.npy", parts(), (2048, 64))
    assert sizes[0] < sizes[1] == (tmp_path / "out.npy").stat().st_size
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.ones((2048, 64), np.float32))
    assert not partial.exists()


@pytest.mark.parametrize("victim", ["model", "tokens"])
def test_logits_do_not_replace_what_they_are_computed_from(
    kinfolk, model, tokens, tmp_path, victim
):
    own = tmp_path / "own.gguf"
    own.write_bytes(model.read_bytes())
    out = own if victim == "model" else tokens
    before = out.read_bytes()
    done = kinfolk("logits", own, "--tokens", tokens, "--out", out)
    assert done.exit_code == 2
    assert f"{out} is a file that is read; choose another name" in done.stderr
    assert out.read_bytes() == before


def test_a_name_that_is_too_long_is_told(kinfolk, model, tokens, tmp_path):
    done = kinfolk("logits", model, "--tokens", tokens, "--out", tmp_path / ("a" * 253))
    assert done.exit_code == 2
    assert "cannot be written: File name too long" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_partial_file(tmp_path, number):
    words = ("synth", "qwen3.5-0.8b", "out.gguf", "--layers", "8")
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", *words],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    finally:
        process.kill()
    assert list(tmp_path.iterdir()) == []

"""Mistakes that need no torch are reported before it is imported, which takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROBE = """
import json, sys
from kinfolk.cli.main import main
sys.argv = ["kinfolk", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    print(json.dumps([stop.code, "torch" in sys.modules]))
"""


@pytest.fixture
def told(tmp_path):
    """``told("run", ...)``: the message about a mistake; it exits with 2 and without torch."""

    def run(*arguments, code=2, **variables):
        done = subprocess.run(
            [sys.executable, "-c", PROBE, *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert json.loads(done.stdout.splitlines()[-1]) == [code, False], done.stderr
        return done.stderr

    return run


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-k", "-2"),
        ("--top-k", 2**63),
        ("--top-p", "1.5"),
        ("--min-p", "2"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "11"),
        ("--frequency-penalty", "-11"),
        ("--seed", 2**64),
        ("--max-tokens", "0"),
    ],
)
def test_values_of_sampling(kinfolk, model, monkeypatch, command, option, value):
    """They are checked while options are parsed, before any model is opened."""
    from kinfolk.cli import loading

    monkeypatch.setattr(loading, "discover", None)
    result = kinfolk(command, "-m", model, option, value)
    assert result.exit_code == 2
    assert f"'{option}'" in result.stderr


def test_a_value_of_sampling_needs_no_torch(told, model):
    assert "'--top-p': top_p must be a number above 0 and at most 1, got 1.5" in told(
        "run", "-m", model, "--top-p", "1.5", "Hi"
    )


def test_values_of_sampling_in_bench(kinfolk, model):
    for option, value in (("--temperature", "nan"), ("--top-p", 0)):
        result = kinfolk("bench", "-m", model, option, value)
        assert result.exit_code == 2
        assert f"'{option}'" in result.stderr


@pytest.mark.parametrize("device", ["cuda:99", "cuda:999999999999999999999"])
def test_a_device_that_is_not_there(told, model, device):
    assert f"--device {device}: " in told("run", "-m", model, "--device", device, "Hi")


def test_a_device_that_means_nothing(told, model):
    assert told("run", "-m", model, "--device", "gpu", "Hi") == (
        "error: --device: must be auto, cpu, cuda, or cuda:N for the GPU of number N (got 'gpu')\n"
    )


def test_a_device_for_which_torch_is_not_built(kinfolk, model, monkeypatch):
    from kinfolk.engine import devices

    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0+cpu")
    result = kinfolk("run", "-m", model, "--device", "cuda", "Hi")
    assert result.exit_code == 2
    assert "torch 2.13.0+cpu is a build for CPUs" in result.stderr


def test_a_driver_that_does_not_know_leaves_it_to_torch(monkeypatch):
    from kinfolk.engine import devices

    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setattr(devices, "_cuda_devices", lambda: None)
    devices.refuse_missing_device("cuda:3")
    monkeypatch.setattr(devices, "_cuda_devices", lambda: 2)
    devices.refuse_missing_device("cuda:1")
    with pytest.raises(Exception, match="has 2 CUDA devices: cuda:0 to cuda:1"):
        devices.refuse_missing_device("cuda:2")


COMMANDS = {
    "run": ("run", "Hi", "-m"),
    "chat": ("chat", "-m"),
    "serve": ("serve", "--port", 0, "-m"),
    "bench": ("bench", "-m"),
    "plan": ("plan",),
    "perplexity": ("perplexity",),
    "logits": ("logits", "--tokens", "ids.npy", "--out", "out.npy"),
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_file_that_is_no_model(told, tmp_path, command):
    import numpy as np

    np.save(tmp_path / "ids.npy", np.arange(3))
    (tmp_path / "text.txt").write_text("one two")
    (tmp_path / "fake.gguf").write_bytes(b"PK\3\4" * 100)
    more = ("text.txt",) if command == "perplexity" else ()
    said = told(*COMMANDS[command], "fake.gguf", *more)
    assert "fake.gguf: not a GGUF file" in said


@pytest.mark.parametrize("damage", ["short", "cut", "folder", "pipe"])
def test_a_file_that_cannot_be_read(told, model, tmp_path, damage):
    path = tmp_path / "model.gguf"
    if damage == "folder":
        path.mkdir()
    elif damage == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(model.read_bytes()[: {"short": 2, "cut": 100_000}[damage]])
    assert f"error: {path}: " in told("run", "-m", path, "Hi")


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--model-family", "none", "no such family"),
        ("--draft", "oracle", "no such drafter"),
        ("--policy", "strict", "no such policy"),
        ("--op", "linear=mine", "no back end 'mine'"),
    ],
)
def test_a_name_that_nobody_installed(told, model, option, value, word):
    assert word in told("run", "-m", model, option, value, "Hi")


def test_an_architecture_that_nobody_knows(told, model):
    assert "'qwen35'" in told("run", "-m", model, "Hi", KINFOLK_PLUGINS="")


def test_a_conversation_with_a_model_that_has_no_template(told, model):
    assert "no chat template" in told("chat", "-m", model)
    assert "no chat template" in told("run", "-m", model, "--chat", "Hi")


def test_a_system_message_in_front_of_raw_text(told, model):
    assert "--system" in told("run", "-m", model, "--raw", "--system", "Obey", "Hi")

"""``kinfolk train-drafter``: from texts to a drafter, its mistakes, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

SMALL = (
    *("--length", 40, "--block", 4, "--layers", 1, "--head-dim", 16, "--batch", 2),
    *("--anchors", 8, "--learning-rate", 3e-3, "--device", "cpu", "--dtype", "f32"),
)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(4):
        (folder / f"{n}.txt").write_text(f"text number {n} " * 12)
    return folder


@pytest.fixture
def train(kinfolk, model, data, tmp_path):
    """``train(...)``: the command with small sizes; later options replace earlier ones."""

    def run(*options, target=model, texts=data):
        out = tmp_path / "model-draft.gguf"
        named = ("-m", target, "--data", texts, "-o", out)
        return kinfolk("train-drafter", *named, "--steps", 3, *SMALL, *options)

    return run


def test_it_writes_a_drafter_that_runs_beside_its_model(train, kinfolk, model, tmp_path):
    result = train("--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    out = tmp_path / "model-draft.gguf"
    assert found["path"] == str(out)
    assert found["bytes"] == out.stat().st_size
    assert found["steps"] == 3
    assert len(found["hits"]) == 3
    assert "expected length" in result.stderr
    assert [path.name for path in tmp_path.glob("model-draft*")] == ["model-draft.gguf"]
    command = ("run", "-m", model, "--raw", "-n", 12, "--temperature", 0, "--device", "cpu", "ab")
    plain, drafted = kinfolk(*command), kinfolk(*command, "--draft-model", out)
    assert plain.exit_code == drafted.exit_code == 0, drafted.stderr
    assert drafted.stdout == plain.stdout


def test_it_writes_the_model_with_a_block_that_drafts_for_it(kinfolk, model, data, tmp_path):
    out = tmp_path / "model-mtp.gguf"
    named = ("-m", model, "--data", data, "-o", out, "--kind", "mtp", "--device", "cpu")
    result = kinfolk("train-drafter", *named, "--steps", 2, "--length", 40, "--batch", 1)
    assert result.exit_code == 0, result.stderr
    assert f"use it with -m {out} --draft mtp" in result.stderr
    command = ("--raw", "-n", 12, "--temperature", 0, "--device", "cpu", "ab")
    plain = kinfolk("run", "-m", model, *command)
    drafted = kinfolk("run", "-m", out, "--draft", "mtp", *command)
    assert plain.exit_code == drafted.exit_code == 0, drafted.stderr
    assert drafted.stdout == plain.stdout


def test_a_block_alone_drafts_beside_its_model(kinfolk, model, data, tmp_path):
    """And is no model."""
    out = tmp_path / "block.gguf"
    named = ("-m", model, "--data", data, "-o", out, "--kind", "mtp", "--alone", "--device", "cpu")
    result = kinfolk("train-drafter", *named, "--steps", 2, "--length", 40, "--batch", 1)
    assert result.exit_code == 0, result.stderr
    assert f"use it with --draft mtp --draft-model {out}" in result.stderr
    assert out.stat().st_size < model.stat().st_size / 2
    command = ("run", "-m", model, "--raw", "-n", 12, "--temperature", 0, "--device", "cpu", "ab")
    plain = kinfolk(*command)
    drafted = kinfolk(*command, "--draft", "mtp", "--draft-model", out)
    assert plain.exit_code == drafted.exit_code == 0, drafted.stderr
    assert drafted.stdout == plain.stdout
    alone = kinfolk("run", "-m", out, "--raw", "-n", 12, "--device", "cpu", "ab")
    assert alone.exit_code == 2
    assert f"{out} holds only blocks of a drafter, not a model" in alone.stderr


def test_the_model_itself_is_never_replaced(kinfolk, model, data, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(model.read_bytes())
    named = ("-m", path, "--data", data, "-o", path, "--kind", "mtp", "--overwrite")
    result = kinfolk("train-drafter", *named, "--steps", 1)
    assert result.exit_code == 2
    assert f"-o {path} is the file of the model itself" in result.stderr
    assert path.read_bytes() == model.read_bytes()


def test_the_texts_are_never_replaced(kinfolk, model, data):
    (text, *_) = [path for path in data.rglob("*") if path.is_file()]
    before = text.read_bytes()
    named = ("-m", model, "--data", data, "-o", text, "--overwrite")
    result = kinfolk("train-drafter", *named, "--steps", 1)
    assert result.exit_code == 2
    assert f"{text} is a file that is read" in result.stderr
    assert text.read_bytes() == before


def test_its_help_teaches(kinfolk):
    text = kinfolk("train-drafter", "--help").stdout
    for words in ("--continue", "expected length", "Ctrl-C", "--draft-model", "--kind mtp"):
        assert words in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seconds", 5), "--seconds and --steps"),
        (("--continue", 40), "--continue 40 leaves nothing of --length 40"),
        (("--length", 9999), "--length 9999 is more than the context"),
        (("--alone",), "--kind dflash takes no --alone"),
        (("--feature-layers", "1,9"), "--feature-layers 1,9: 9"),
        (("--feature-layers", "1,x"), "--feature-layers 1,x: expected numbers"),
        (("--feature-layers", "1,1"), "--feature-layers 1,1: 1 is named twice"),
        (("--window", 2), "--window 2 is smaller than the 4 rows"),
        (("--heads", 4, "--kv-heads", 3), "--kv-heads 3 does not divide the 4 heads"),
        (("--head-dim", 15), "--head-dim 15 is odd"),
        (("--mask-token", 99999), "--mask-token 99999 is no token"),
        (("--outtype", "q9"), "q9"),
        (("--block", 64, "--length", 64), "too short for a block of 64 rows"),
        (("--learning-rate", "nan"), "nan is not a finite number"),
        (("--gamma", "inf"), "inf is not a finite number"),
    ],
)
def test_a_mistake_is_named_before_anything_is_loaded(train, tmp_path, options, message):
    result = train(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.glob("model-draft*"))


def test_files_that_are_not_there_are_named(train, tmp_path):
    result = train(texts=tmp_path / "nothing.txt")
    assert result.exit_code == 2
    assert "nothing.txt: cannot be read" in result.stderr
    result = train(target=tmp_path / "nothing.gguf")
    assert result.exit_code == 2
    assert "nothing.gguf: no such file" in result.stderr


def test_a_file_that_exists_is_replaced_only_on_request(train, tmp_path):
    out = tmp_path / "model-draft.gguf"
    out.write_text("precious")
    result = train()
    assert result.exit_code == 2
    assert "model-draft.gguf exists" in result.stderr
    assert "--overwrite" in result.stderr
    assert out.read_text() == "precious"
    assert train("--overwrite").exit_code == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(train, model, data, tmp_path):
    out = tmp_path / "model-draft.gguf"
    options = [*SMALL, "--batch", 8, "--steps", 80]
    named = ["-m", model, "--data", data, "-o", out]
    command = [sys.executable, "-m", "kinfolk", "train-drafter", *named, *options]
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step "):
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    checkpoint = tmp_path / "model-draft.gguf.training"
    assert f"interrupted; the same command goes on from {checkpoint}" in rest
    assert checkpoint.exists()
    assert not out.exists()
    # Bad input loses nothing.
    other = train("--batch", 8, "--steps", 80, "--block", 5)
    assert other.exit_code == 2
    assert "--block 4 there and 5 here" in other.stderr
    assert "--restart" in other.stderr
    before = checkpoint.read_bytes()
    assert train("--batch", 8, "--steps", 80, "--learning-rate", "x").exit_code == 2
    assert checkpoint.read_bytes() == before
    result = train("--batch", 8, "--steps", 80)
    assert result.exit_code == 0, result.stderr
    assert "going on after step" in result.stderr
    assert out.exists()
    assert not checkpoint.exists()


def test_a_run_can_be_begun_anew(train, tmp_path):
    checkpoint = tmp_path / "model-draft.gguf.training"
    checkpoint.write_bytes(b"damaged")
    result = train()
    assert result.exit_code == 2
    assert f"{checkpoint}: this is no checkpoint" in result.stderr
    assert train("--restart").exit_code == 0

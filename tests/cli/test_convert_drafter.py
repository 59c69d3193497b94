"""``kinfolk convert DIR OUT --target MODEL``, from a directory to a drafter that runs."""

from __future__ import annotations

import json

import pytest
from dflash_configs import authors_config
from dflash_reference import Shape, random_tensors
from safetensors.torch import save_file

SHAPE = Shape((24, None), (True, False), vocabulary=768, mask=767, dim=32)


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(authors_config(SHAPE)))
    save_file(random_tensors(SHAPE), folder / "model.safetensors")
    return folder


def test_a_converted_drafter_runs_beside_its_model(kinfolk, directory, model, tmp_path):
    out = tmp_path / "model-draft.gguf"
    result = kinfolk("convert", directory, out, "--target", model, "--outtype", "f32", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["family"] == "dflash"
    command = (
        "run",
        "-m",
        model,
        "--raw",
        "-n",
        "12",
        "--temperature",
        "0",
        "--device",
        "cpu",
        "ab",
    )
    plain, drafted = kinfolk(*command), kinfolk(*command, "--draft-model", out)
    assert plain.exit_code == drafted.exit_code == 0, drafted.stderr
    assert drafted.stdout == plain.stdout


def test_a_drafter_without_a_target_says_what_is_missing(kinfolk, directory, tmp_path):
    result = kinfolk("convert", directory, tmp_path / "x.gguf")
    assert result.exit_code == 2
    assert "--target MODEL" in result.stderr


def test_a_drafter_needs_the_tokenizer(kinfolk, directory, model, tmp_path):
    out = tmp_path / "x.gguf"
    result = kinfolk("convert", directory, out, "--target", model, "--no-tokenizer")
    assert result.exit_code == 2
    assert "--no-tokenizer" in result.stderr
    assert not out.exists()

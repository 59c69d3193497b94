"""The drafters in the package draft for the pocket model, and are small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pocket import bare, exercises

import kinfolk_qwen35
from kinfolk.cli.main import cli
from kinfolk.gguf.file import GGUFFile

FOLDER = Path(kinfolk_qwen35.__file__).parent / "pocket" / "drafters"
NAMES = ["dflash", "mtp"]
MOST_BYTES = 8_000_000


def answer(*options: object) -> dict:
    command = ["run", "--json", "--temperature", "0", "--dtype", "f32", *map(str, options)]
    result = CliRunner().invoke(cli, [*command, exercises.FIRST_COMMAND])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def plain() -> dict:
    return answer("--draft", "off")


@pytest.mark.parametrize(
    ("name", "shape", "least"),
    [("dflash", "chain", 1.2), ("dflash", "tree", 1.6), ("mtp", "chain", 1.2)],
)
def test_they_save_steps_and_change_no_token(plain, name, shape, least) -> None:
    file = FOLDER / f"pocket-{name}.gguf"
    options = ("--draft-model", file, "--draft-mode", shape, "--draft-widths", "fixed")
    found = answer("--draft", name, *options)
    assert found["text"] == plain["text"]
    assert found["accept_length"] >= least


def test_together_they_are_small() -> None:
    files = [FOLDER / f"pocket-{name}.gguf" for name in NAMES]
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    assert (FOLDER / "README.md").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_bare_copy_is_the_drafter_without_its_vocabulary(name, tmp_path) -> None:
    file = FOLDER / f"pocket-{name}.gguf"
    bare.copy(file, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == file.read_bytes()
    with GGUFFile.open(file) as drafter:
        assert "tokenizer.ggml.tokens" not in drafter.metadata

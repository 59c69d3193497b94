"""Models run with a SentencePiece vocabulary, which lists scores and no merges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kinfolk.convert.dense import outline
from kinfolk.descriptors import VocabularyOutline
from kinfolk.gguf.file import GGUFFile
from kinfolk.synth.tiny import tiny_model, tiny_vocabulary
from kinfolk.testing.model_files import write_f32
from kinfolk_gemma4.tiny import tiny

TOKENS = 600
EXAMPLE = Path(__file__).parents[2] / "examples" / "kinfolk-qwen3"
GREEDY = ("--temperature", "0", "--ignore-eos", "-n", 6)


def scored(vocabulary: VocabularyOutline) -> VocabularyOutline:
    return replace(vocabulary, size=TOKENS, pre="llama", symbols="sentencepiece")


@pytest.fixture(scope="module")
def gemma4(tmp_path_factory) -> Path:
    shape = tiny().shape
    shape = replace(shape, vocabulary=scored(shape.vocabulary))
    return write_f32(shape, tmp_path_factory.mktemp("models") / "gemma4.gguf")


@pytest.fixture
def qwen3(tmp_path, monkeypatch, install) -> Path:
    """A model of a third-party family, which states nothing about such vocabularies."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    install("qwen3", "from kinfolk_qwen3.plugin import register_families\n")
    from kinfolk_qwen3.tiny import ARCHITECTURE, SHAPE

    described = outline(replace(SHAPE, vocabulary=TOKENS))
    vocabulary = scored(tiny_vocabulary("llama", TOKENS))
    return write_f32(tiny_model(ARCHITECTURE, described, vocabulary).shape, tmp_path / "qwen3.gguf")


@pytest.mark.parametrize("name", ["gemma4", "qwen3"])
def test_such_a_model_answers(kinfolk, request, name) -> None:
    model = request.getfixturevalue(name)
    with GGUFFile.open(model) as file:
        assert file.metadata.string("tokenizer.ggml.model") == "llama"
        assert "tokenizer.ggml.merges" not in file.metadata
    for mode in ("--raw", "--chat"):
        result = kinfolk("run", "-m", model, mode, *GREEDY, "--json", "Why is it  so?\n\n")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["completion_tokens"] == 6
    tokens = json.loads(kinfolk("tokenize", model, "--json", "--text", "at the\n\n").stdout)
    assert 0 < len(tokens) < len("at the\n\n")


def test_such_a_file_of_gemma4_begins_texts_as_others_of_it_do(kinfolk, gemma4) -> None:
    options = ("--raw", *GREEDY, "--json", "a")
    assert json.loads(kinfolk("run", "-m", gemma4, *options).stdout)["prompt_tokens"] == 2

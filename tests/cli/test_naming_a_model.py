"""One way to name a model: FILE or -m FILE in every command, the bundled model without either."""

from __future__ import annotations

import json

import click
import numpy as np
import pytest

from kinfolk.cli.main import BUILT_IN, cli

WITHOUT_A_MODEL = {"cache", "convert", "synth", "new-family", "check", "plugins"}


def parameters(name):
    command = cli.get_command(click.Context(cli), name)
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - WITHOUT_A_MODEL))
def test_every_command_takes_a_model_with_m(name):
    assert {"-m", "--model"} <= parameters(name)


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - WITHOUT_A_MODEL - {"run", "perplexity"}))
def test_every_command_whose_argument_is_free_takes_a_model_there(name):
    assert "file" in parameters(name)


@pytest.fixture
def arguments(tmp_path):
    """The arguments of quick commands besides the model."""
    np.save(tmp_path / "ids.npy", np.arange(3))
    (tmp_path / "text.txt").write_text("one two three")
    return {
        "inspect": ("--json",),
        "plan": ("--json", "--memory", 1),
        "tokenize": ("--json", "--text", "Hello"),
        "logits": ("--tokens", tmp_path / "ids.npy", "--out", tmp_path / "out.npy"),
        "bench": ("--prompt", 2, "--generate", 2, "--repeats", 1, "--json"),
        "perplexity": (tmp_path / "text.txt", "--json"),
    }


def told(kinfolk, name, *words):
    """The output of a command without its times."""
    result = kinfolk(name, *words)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["model"] if name == "bench" else result.stdout


@pytest.mark.parametrize("name", ["inspect", "plan", "tokenize", "logits", "bench", "perplexity"])
def test_both_ways_and_the_bundled_model(kinfolk, model, arguments, name):
    rest = arguments[name]
    by_place = told(kinfolk, name, model, *rest)
    assert told(kinfolk, name, *rest, "-m", model) == by_place
    if name != "logits":  # whose output does not mention the model
        assert told(kinfolk, name, *rest) != by_place


@pytest.mark.parametrize("name", ["inspect", "plan", "tokenize", "logits", "bench", "perplexity"])
def test_two_models_are_refused(kinfolk, model, arguments, name):
    result = kinfolk(name, model, *arguments[name], "-m", "other.gguf")
    assert result.exit_code == 2
    assert f"two models are named, {model} and, with -m, other.gguf" in result.stderr


@pytest.mark.parametrize("words", [("chat",), ("serve", "--port", 0), ("doctor",)])
def test_two_models_are_refused_before_anything_starts(kinfolk, model, words):
    result = kinfolk(*words, model, "-m", "other.gguf")
    assert result.exit_code == 2
    assert "two models are named" in result.stderr


def test_a_conversation_takes_its_model_by_place(kinfolk, chat_model):
    result = kinfolk("chat", chat_model, "-n", 2, stdin="one\n")
    assert result.exit_code == 0, result.stderr


def test_perplexity_needs_a_text(kinfolk, model):
    for words in ((), (model,), ("-m", model), (model, "a.txt", "b.txt")):
        result = kinfolk("perplexity", *words)
        assert result.exit_code == 2
        assert "the text to score" in result.stderr


# -- names that are not files ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "qwen3:8b",
        "llama3",
        "owner/Model-8B",
        "hf.co/owner/Model-GGUF:Q4_K_M",
        "https://example.com/model.gguf",
    ],
)
def test_the_name_of_a_model_elsewhere_is_answered_with_what_it_would_need(kinfolk, name):
    result = kinfolk("run", "-m", name, "Hi")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {name}: no such file. ")
    assert "downloads nothing" in result.stderr
    assert "-m path/to/model.gguf" in result.stderr


def test_a_path_is_not_taken_for_a_name(kinfolk, tmp_path):
    result = kinfolk("run", "-m", tmp_path / "models" / "m.gguf", "Hi")
    assert f"no such file; there is no folder {tmp_path / 'models'}" in result.stderr


def test_a_folder_that_can_be_converted_is_answered_with_how(kinfolk, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    result = kinfolk("run", "-m", tmp_path, "Hi")
    assert f"'kinfolk convert {tmp_path} OUT.gguf'" in result.stderr


def test_a_family_that_does_not_claim_the_file_is_told_with_the_one_that_does(kinfolk, model):
    result = kinfolk("run", "-m", model, "--model-family", "gemma4", "Hi")
    assert result.exit_code == 2
    assert "--model-family gemma4: the file's architecture is 'qwen35'" in result.stderr
    assert "leave the flag out" in result.stderr

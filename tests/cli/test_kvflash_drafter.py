"""The options of ``--kvflash-policy drafter`` on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kinfolk.cli.main import cli
from kinfolk.settings import load_settings

PAGED = ("--device", "cpu", "--context", 2048, "--slots", 2, "--kvflash", 640, "--kvflash-burst", 2)
POLICY = ("--kvflash-policy", "drafter")


def invoke(command, *args):
    result = CliRunner().invoke(cli, [command, *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_an_answer_is_given_with_a_model_that_reads_along(model, tmp_path):
    prompt = tmp_path / "long.txt"
    prompt.write_text("one two three four " * 80)
    options = ("-m", model, *PAGED, *POLICY, "--kvflash-drafter", model)
    answer = ("-n", 8, "--temperature", 0, "--ignore-eos", "--raw", "--json")
    result = invoke("run", *answer, "-f", prompt, *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["prompt_tokens"] > 640
    assert found["completion_tokens"] == 8


def test_the_plan_counts_what_the_model_beside_it_takes(model):
    def planned(*more):
        result = invoke("plan", model, "--json", *PAGED, *more)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    alone, both = planned(), planned(*POLICY, "--kvflash-drafter", model)
    assert alone["chunk_scorer"] == 0 < both["chunk_scorer"]
    assert both["residency"]["scorers"] == ["drafter"]
    # Free memory of this machine changes between two looks at it.
    limit = ("--memory", 0.5)
    alone, both = planned(*limit), planned(*limit, *POLICY, "--kvflash-drafter", model)
    assert both["usable"] == alone["usable"] - both["chunk_scorer"]
    one, two = (
        planned(*POLICY, "--kvflash-drafter", model, "--slots", slots)["chunk_scorer"]
        for slots in (1, 2)
    )
    assert two > one, "keys and values of all slots"
    text = invoke("plan", model, *PAGED, *POLICY, "--kvflash-drafter", model).stdout
    assert "the scorer of chunks beside it" in text


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (POLICY, "name its file with --kvflash-drafter"),
        (("--kvflash-drafter", "x.gguf"), "is for --kvflash-policy drafter, not qk"),
        ((*POLICY, "--kvflash-drafter", "no.gguf"), "no.gguf: no such file"),
        (("--kvflash-policy", "draft"), "did you mean drafter?"),
        (
            (*POLICY, "--kvflash-drafter", "x.gguf", "--kvflash-layers", 1),
            "x.gguf: no such file",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_model_is_loaded(model, options, what):
    result = invoke("run", "--raw", "-m", model, *PAGED, *options, "hello")
    assert result.exit_code != 0
    assert what in " ".join(result.stderr.split())


def test_layers_are_not_for_a_model_that_reads_along(model):
    layers = ("--kvflash-layers", 1)
    result = invoke("plan", model, *PAGED, *POLICY, "--kvflash-drafter", model, *layers)
    assert result.exit_code != 0
    assert "--kvflash-layers is for --kvflash-policy qk, not drafter" in result.stderr


@pytest.mark.parametrize("command", ["serve", "daemon"])
def test_servers_refuse_a_scorer_for_measurements(model, command):
    result = invoke(command, "-m", model, *PAGED, "--kvflash-policy", "oracle")
    assert result.exit_code != 0
    assert "oracle is for tests and measurements" in result.stderr


def test_the_variable_of_another_program_names_the_file(monkeypatch, model):
    monkeypatch.setenv("DFLASH_KVFLASH_DRAFTER", str(model))
    assert load_settings().kvflash_drafter == model
    assert load_settings(kvflash_drafter="other.gguf").kvflash_drafter.name == "other.gguf"

"""The options of compressed prompts on the command line."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from compression_scenes import story

from kinfolk.cli.main import cli
from kinfolk.compress.options import CompressionOptions
from kinfolk.errors import SettingsError
from kinfolk.settings import load_settings


def run(*args, **fields):
    result = CliRunner().invoke(cli, ["run", "--device", "cpu", "--raw", *map(str, args)], **fields)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_run_compresses_a_file_and_says_both_lengths(model, tmp_path):
    prompt = tmp_path / "long.txt"
    prompt.write_text(f"{story(250)}\n\nWhich door is it?")
    options = ("-m", model, "--json", "-n", 2, "-f", prompt, "--temperature", 0)
    plain = json.loads(run(*options).stdout)
    on = ("--prefill-compression", "always", "--prefill-compression-drafter", model)
    ratio = ("--prefill-compression-curve", "100:0.5, 1000:0.2")
    found = json.loads(run(*options, *on, *ratio).stdout)
    assert found["original_tokens"] == plain["prompt_tokens"]
    assert found["compression_skipped"] is None
    assert found["prompt_tokens"] < 0.6 * plain["prompt_tokens"]
    assert "original_tokens" not in plain
    short = json.loads(run(*options, "--prefill-compression", "auto", *on[2:]).stdout)
    assert short["compression_skipped"] == "short"
    assert short["text"] == plain["text"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--prefill-compression", "auto"), "name its file with --prefill-compression-drafter"),
        (("--prefill-compression", "some"), "must be off, auto or always"),
        (("--prefill-compression-drafter", "no.gguf"), "no.gguf: no such file"),
        (("--prefill-compression-keep-ratio", "0"), "above 0"),
        (("--prefill-compression-threshold", "0"), "at least 1"),
        (("--prefill-compression-curve", "10:0.5 5:0.1"), "must increase"),
        (("--prefill-compression-curve", "ten"), "'ten' is not of the form TOKENS:RATIO"),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_model_is_loaded(model, options, what):
    result = run("-m", model, *options, "hello")
    assert result.exit_code != 0
    assert what in " ".join(result.stderr.split())


def test_a_file_that_is_no_model_is_refused_by_its_name(model, tmp_path):
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"not a model")
    result = run("-m", model, "--prefill-compression-drafter", wrong, "hello")
    assert result.exit_code != 0
    assert "wrong.gguf" in result.stderr


def test_settings_become_options(model):
    given = {"prefill_compression_drafter": model, "prefill_compression": "auto"}
    flat = CompressionOptions.of(load_settings(**given))
    assert (flat.mode, flat.threshold, flat.curve.ratio(10**6)) == ("auto", 32000, 0.05)
    curve = load_settings(**given, prefill_compression_curve="10000:0.5 40000:0.2")
    assert CompressionOptions.of(curve).curve.ratio(25000) == pytest.approx(0.35)
    # As the engine's process passes them on to that of the HTTP server.
    again = load_settings(**given, prefill_compression_curve=curve.prefill_compression_curve)
    assert CompressionOptions.of(again) == CompressionOptions.of(curve)
    assert CompressionOptions.of(load_settings()) is None
    with pytest.raises(SettingsError, match="--prefill-compression-drafter"):
        CompressionOptions.of(load_settings(prefill_compression="always"))


def test_chat_compresses_a_long_question(kinfolk, chat_model, model):
    def tokens(*options):
        options = ("-m", chat_model, "-n", 1, "--temperature", 0, "--stats", *options)
        result = kinfolk("chat", *options, stdin=f"{story(250)}\n")
        assert result.exit_code == 0, result.stderr
        return int(re.search(r"\((\d+) in the prompt", result.stderr)[1])

    on = ("--prefill-compression", "always", "--prefill-compression-drafter", model)
    assert tokens(*on, "--prefill-compression-keep-ratio", 0.2) < 0.6 * tokens()


def test_the_plan_counts_the_scorer_and_divides_what_it_leaves(kinfolk, model):
    def plan(*options):
        options = ("--device", "cpu", "--memory", 1, "--json", *options)
        return json.loads(kinfolk("plan", model, *options).stdout)

    alone, both = plan(), plan("--prefill-compression-drafter", model)
    assert alone["prompt_scorer"] == 0 < both["prompt_scorer"]
    left = alone["usable"] - both["prompt_scorer"]
    assert both["usable"] == pytest.approx(left, abs=2)
    options = ("--device", "cpu", "--memory", 1, "--prefill-compression-drafter", model)
    assert "the scorer of prompts beside it" in kinfolk("plan", model, *options).stdout

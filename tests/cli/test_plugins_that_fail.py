"""A plugin that loads, and then fails in every hook, installed while every command runs."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from kinfolk.descriptors import resolve

# The body of every function that the plugin registers. ``str`` of the exception fails too, which
# must not break the code that reports it.
RAISES = "raise Unreadable"
ANSWERS = {
    "raises": RAISES,
    "exits": "raise SystemExit(3)",
    "object": "return object()",
    "text": "return 'nonsense'",
    "nothing": "return None",
}

EVERYTHING = """
import click
from kinfolk import hookimpl
from kinfolk.descriptors import DrafterSpec, OpBackend, PolicySpec, QuantFormat

METHODS = (
    "read_config weight_plan build hooks chat pretokenizers shapes model_cards convert tiny "
    "bundled_model"
).split()
OPS = ("linear", "rms_norm", "act_and_mul", "gated_attention", "sample")


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text today")


def answer(*arguments, **options):
    {answer}


Wreck = type(
    "Wreck",
    (),
    dict(
        name="aaa",
        architectures=("aaa",),
        drafter_architectures=(),
        **{{method: answer for method in METHODS}},
    ),
)


class Command(click.Command):
    get_short_help_str = format_help = get_help = answer


@hookimpl
def register_families():
    return [Wreck()]


@hookimpl
def register_op_backends():
    return [OpBackend(op, "aaa", f"{{__name__}}:answer", f"{{__name__}}:answer", 99) for op in OPS]


@hookimpl
def register_quant_formats():
    return [QuantFormat("AAA", 9001, 32, 18, f"{{__name__}}:answer", f"{{__name__}}:answer")]


@hookimpl
def register_drafters():
    return [DrafterSpec("aaa", f"{{__name__}}:answer")]


@hookimpl
def register_policies():
    return [PolicySpec("aaa", f"{{__name__}}:answer")]


@hookimpl
def register_commands(cli):
    cli.add_command(Command("aaa", callback=answer))
"""

GREEDY = ("--temperature", 0, "--ignore-eos", "-n", 4)


@pytest.fixture(params=["raises", "object"])
def wreck(request, install):
    """``wreck()`` installs the plugin."""
    return lambda: install("aaa", EVERYTHING.format(answer=ANSWERS[request.param]))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder as transformers writes it."""
    from kinfolk_qwen35.family import Qwen35

    folder = tmp_path_factory.mktemp("checkpoint")
    resolve(Qwen35().tiny().checkpoint)(folder)
    return folder


@pytest.fixture
def invocation(model, chat_model, checkpoint, tmp_path):
    """``invocation(name)``: arguments, stdin, and the file that the command writes, if any."""
    text, tokens, out = tmp_path / "text.txt", tmp_path / "tokens.npy", tmp_path / "out"
    text.write_text("def f(x):\n    return x + 1\n")
    np.save(tokens, np.arange(9))

    def make(name):
        return {
            "--help": ("--help",),
            "run --help": ("run", "--help"),
            "run": ("run", "-m", model, *GREEDY, "def f(x):"),
            "run the bundled model": ("run", *GREEDY, "def f(x):"),
            "chat": ("chat", "-m", chat_model, *GREEDY),
            "inspect": ("inspect", model),
            "plan": ("plan", model, "--memory", 1),
            "tokenize": ("tokenize", model, "--text", "Hello wörld"),
            "logits": ("logits", model, "--tokens", tokens, "--out", out),
            "perplexity": ("perplexity", model, text),
            "convert": ("convert", checkpoint, out, "--no-tokenizer"),
            "synth --list": ("synth", "--list"),
            "synth": ("synth", "qwen3.5-0.8b", out, "--layers", 1, "--json"),
            "new-family": ("new-family", "olive", out),
        }[name]

    make.out = out
    return make


COMMANDS = (
    *("run --help", "run", "run the bundled model", "chat", "inspect", "plan", "tokenize"),
    *("logits", "perplexity", "convert", "synth --list", "synth", "new-family"),
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_what_it_does_without_the_plugin(
    kinfolk, invocation, wreck, monkeypatch, name
):
    # A table of a whole vocabulary takes seconds, and its sources are reported before.
    monkeypatch.setattr("kinfolk.synth.write.write_synthetic", lambda plan, out, **options: None)

    def done():
        result = kinfolk(*invocation(name), stdin="one\ntwo\n")
        written = invocation.out.read_bytes() if invocation.out.is_file() else b""
        if invocation.out.is_file():
            invocation.out.unlink()
        elif invocation.out.is_dir():
            shutil.rmtree(invocation.out)
        return result, (result.exit_code, result.stdout, written)

    result, before = done()
    assert result.exit_code == 0, result.stderr
    wreck()
    result, after = done()
    assert after == before, result.stderr
    assert "Traceback" not in result.stderr


def test_a_bench_measures_beside_it(kinfolk, wreck, model):
    wreck()
    words = ("--prompt", 9, "--generate", 3, "--repeats", 1, "--json")
    result = kinfolk("bench", "-m", model, *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["engine"]["steps"] > 0


def test_a_server_starts_beside_it(kinfolk, wreck, model, monkeypatch):
    from kinfolk.cli.http_process import HttpProcess

    served, wait = [], HttpProcess.wait

    def stop_and_wait(process):
        """Called when clients can connect."""
        served.append(process.pid)
        process.stop()
        return wait(process)

    monkeypatch.setattr(HttpProcess, "wait", stop_and_wait)
    wreck()
    result = kinfolk("serve", "-m", model, "--port", 0)
    assert result.exit_code == 0, result.stderr
    assert served


def test_another_family_is_checked_beside_it(program, install):
    install("aaa", EVERYTHING.format(answer=RAISES))
    done = program("check", "qwen35", "-k", "descriptor or texts_come_back")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_help_lists_all_commands_beside_it(kinfolk, wreck):
    before = kinfolk("--help").stdout
    wreck()
    result = kinfolk("--help")
    assert result.exit_code == 0, result.stderr
    head, _, brought = result.stdout.partition("Commands of plugins:\n")
    assert head.rstrip() in before
    assert re.match(r" +aaa +its help is broken: see 'kinfolk plugins'", brought)


def test_names_are_completed_beside_it(kinfolk, wreck):
    wreck()
    variables = {"_KINFOLK_COMPLETE": "bash_complete", "COMP_WORDS": "kinfolk p", "COMP_CWORD": "1"}
    result = kinfolk(env=variables, prog_name="kinfolk")
    assert result.stdout.split() == ["plain,plan", "plain,perplexity", "plain,plugins"]
    variables |= {"COMP_WORDS": "kinfolk aa"}
    assert kinfolk(env=variables, prog_name="kinfolk").stdout.split() == ["plain,aaa"]


@pytest.mark.parametrize("answer", ANSWERS)
def test_plugins_names_each_method_that_fails(kinfolk, install, answer):
    install("aaa", EVERYTHING.format(answer=ANSWERS[answer]))
    listed = {plugin["name"]: plugin for plugin in json.loads(kinfolk("plugins", "--json").stdout)}
    wreck = listed.pop("aaa")
    assert wreck["status"] == "failed"
    assert wreck["provides"]["families"] == ["aaa"]
    fails = {"pretokenizers", "shapes", "model_cards"}
    fails |= set() if answer == "nothing" else {"bundled_model"}
    assert set(re.findall(r"family 'aaa': Family\.(\w+) ", wreck["reason"])) == fails
    assert ("command 'aaa': get_short_help_str " in wreck["reason"]) == (answer != "text")
    assert ("Traceback" in wreck["trace"]) == (answer in ("raises", "exits"))
    # Other plugins that are installed here are left out, broken or not.
    asked = [plugin for plugin in listed.values() if plugin["status"] != "skipped"]
    assert {plugin["status"] for plugin in asked} == {"ok"}
    assert {plugin["name"] for plugin in asked} >= {"kinfolk", "qwen35"}
    result = kinfolk("plugins")
    assert result.exit_code == 0
    assert f"  {wreck['reason']}\n" in result.stdout
    assert "aaa  (made-aaa 1.0)  FAILED" in result.stdout


def test_doctor_reports_it_and_tries_the_bundled_model(kinfolk, wreck):
    wreck()
    result = kinfolk("doctor", "--json")
    assert result.exit_code == 1
    checks = {(check["area"], check["name"]): check for check in json.loads(result.stdout)}
    failed = [key for key, check in checks.items() if check["status"] == "failed"]
    assert ("plugins", "aaa") in failed
    assert {area for area, _ in failed} == {"plugins", "ops"}
    assert "family 'aaa': Family.bundled_model " in checks["plugins", "aaa"]["detail"]
    refused = "; aaa refused: back end 'aaa' of op 'linear' of plugin 'aaa' (made-aaa 1.0): "
    assert refused in checks["ops", "linear"]["detail"]
    assert any(area == "computation" for area, _ in checks)


def test_strict_plugins_make_it_an_error_at_start(kinfolk, wreck, model, monkeypatch):
    wreck()
    monkeypatch.setenv("KINFOLK_STRICT_PLUGINS", "1")
    result = kinfolk("inspect", model)
    assert result.exit_code == 2
    assert "plugin 'aaa' (made-aaa 1.0): family 'aaa': Family.pretokenizers " in result.stderr


def test_what_is_left_out_is_said_once(kinfolk, install, caplog):
    install("aaa", EVERYTHING.format(answer=RAISES))
    kinfolk("run", *GREEDY, "def f(x):")
    (said,) = (r for r in caplog.records if "Family." in r.message)
    assert said.levelname == "WARNING"
    who = "family 'aaa' of plugin 'aaa' (made-aaa 1.0)"
    assert f"{who}: Family.bundled_model failed" in said.message


def test_the_programs_own_process_runs_beside_it(program, install, model):
    install("aaa", EVERYTHING.format(answer=RAISES))
    done = program("run", "-m", model, *GREEDY, "def f(x):")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("def f(x):")
    assert "Traceback" not in done.stderr


# -- parts asked for by name ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        (("--draft", "aaa"), "drafter 'aaa' of plugin 'aaa' (made-aaa 1.0): made_aaa:answer "),
        (("--policy", "aaa"), "policy 'aaa' of plugin 'aaa' (made-aaa 1.0): made_aaa:answer "),
        (
            ("--op", "linear=aaa"),
            "back end 'aaa' of op 'linear' of plugin 'aaa' (made-aaa 1.0): made_aaa:answer ",
        ),
    ],
)
@pytest.mark.parametrize("answer", [name for name in ANSWERS if name != "nothing"])
def test_what_was_chosen_and_fails_is_an_error_that_names_it(
    kinfolk, install, model, words, blamed, answer
):
    install("aaa", EVERYTHING.format(answer=ANSWERS[answer]))
    result = kinfolk("run", "-m", model, *words, *GREEDY, "def f(x):")
    if words[0] == "--policy" and not ANSWERS[answer].startswith("raise"):
        assert result.exit_code == 0, "an object without hooks is a policy that says nothing"
        return
    assert result.exit_code != 0
    assert blamed in result.stderr


def test_a_command_of_a_plugin_that_fails_is_blamed_on_the_plugin(kinfolk, install):
    install("aaa", EVERYTHING.format(answer="raise KeyError('x')"))
    result = kinfolk("aaa")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: command 'aaa' of plugin 'aaa' (made-aaa 1.0) failed: KeyError: 'x' ("
    )
    assert result.stderr.count("\n") == 1
    assert "bug of kinfolk" not in result.stderr
    for words in (("aaa", "--help"), ("aaa", "--no-such-option")):
        result = kinfolk(*words)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr
    assert "Traceback" in kinfolk("aaa", "--debug").stderr


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("raise SystemExit(5)", 5),
        ("raise click.UsageError('no')", 2),
        ("raise click.Abort", 130),
        ("raise click.exceptions.Exit(4)", 4),
        ("raise KeyboardInterrupt", 130),
        ("from kinfolk.errors import SettingsError; raise SettingsError('no')", 2),
    ],
)
def test_a_command_of_a_plugin_leaves_as_it_likes(kinfolk, install, raised, code):
    install("aaa", EVERYTHING.format(answer=raised))
    result = kinfolk("aaa")
    assert result.exit_code == code
    assert "made-aaa" not in result.stderr


# -- the family of the file -----------------------------------------------------------------------

OWN = """
from kinfolk import hookimpl
from kinfolk.errors import UnsupportedModelError
from kinfolk_qwen35.family import Qwen35


def answer(self, *arguments):
    {answer}


Own = type("Own", (Qwen35,), dict(name="own", architectures=("qwen35",), {method}=answer))


@hookimpl
def register_families():
    return [Own()]
"""

ASKED = ("read_config", "weight_plan", "build", "hooks", "chat", "pretokenizers")


@pytest.fixture
def run_own(kinfolk, install, model):
    """``run_own(method, answer)``: the model run by a family that gives this answer."""

    def run(method, answer, *words):
        install("own", OWN.format(method=method, answer=answer))
        return kinfolk(*words, "run", "-m", model, "--model-family", "own", *GREEDY, "def f(x):")

    return run


@pytest.mark.parametrize("method", ASKED)
def test_a_family_that_fails_at_its_own_file_is_one_line(run_own, method):
    result = run_own(method, "raise KeyError('head_count')")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"error: family 'own' of plugin 'own' (made-own 1.0): Family.{method} failed: "
        "KeyError: 'head_count' ("
    )
    assert "made_own.py, line 9)" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("answer", ["object()", "'nonsense'", "None", "7"])
def test_a_family_that_answers_nonsense_about_its_own_file_is_one_line(run_own, method, answer):
    if (method, answer) == ("hooks", "object()"):
        answer = "type(self)"
    result = run_own(method, f"return {answer}")
    assert result.exit_code == 2
    said = rf"error: family 'own' of plugin 'own' \(made-own 1\.0\): Family\.{method} returned .+"
    if method == "hooks" and answer in ("7", "'nonsense'"):  # objects without a hook
        said = r"error: hook allocate_cache: no answer; .*family 'own' of plugin 'own' .*"
    assert re.fullmatch(said + "\n", result.stderr), result.stderr


def test_the_traceback_of_a_family_is_shown_to_whoever_asks(run_own):
    result = run_own("read_config", "raise KeyError('head_count')", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert "KeyError: 'head_count'" in result.stderr.split("The above exception")[0]


@pytest.mark.parametrize("method", ["read_config", "weight_plan", "build", "hooks", "chat"])
def test_a_refusal_of_the_family_is_handed_on_as_it_is(run_own, method):
    result = run_own(method, "raise UnsupportedModelError('no experts here')")
    assert (result.exit_code, result.stderr) == (2, "error: no experts here\n")


def test_running_out_of_memory_is_not_blamed_on_the_family(run_own):
    result = run_own("build", "raise MemoryError")
    assert result.exit_code == 1
    assert result.stderr == "error: out of memory: this machine has too little for the command\n"


def test_cards_that_fail_cost_the_defaults_and_not_the_answer(run_own, caplog):
    result = run_own("model_cards", "raise KeyError('x')")
    assert result.exit_code == 0, result.stderr
    (said,) = (r for r in caplog.records if "Family." in r.message)
    assert "Family.model_cards failed: KeyError: 'x'" in said.message


def test_a_conversion_by_a_family_that_fails_is_one_line(kinfolk, install, checkpoint, tmp_path):
    install("own", OWN.format(method="convert", answer="raise KeyError('x')"))
    result = kinfolk("convert", checkpoint, tmp_path / "out.gguf", "--model-family", "own")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: family 'own' of plugin 'own' (made-own 1.0): Family.convert failed: KeyError: 'x'"
    )

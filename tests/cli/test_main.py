"""Finding commands, and exit codes and messages after errors."""

from __future__ import annotations

import errno
import importlib

import click
import pytest

from kinfolk.cli.main import BUILT_IN, cli
from kinfolk.errors import KinfolkError
from kinfolk.settings import choices_of
from kinfolk.version import __version__

GREET = """
import click
from kinfolk import hookimpl

@hookimpl
def register_commands(cli):
    @cli.command()
    @click.argument("name")
    def greet(name):
        "Say hello to NAME."
        click.echo(f"hello {name}")
"""

BROKEN = "raise RuntimeError('the plugin is broken')"


@pytest.fixture
def raising(monkeypatch):
    """``raising(error)``: the command ``plugins`` raises it."""

    def make(error):
        def fail():
            raise error

        module = importlib.import_module("kinfolk.cli.plugins")
        monkeypatch.setattr(module, "plugins", click.Command("plugins", callback=fail))

    return make


def test_help_lists_every_command(kinfolk):
    result = kinfolk("--help")
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.output for name in BUILT_IN)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_command_has_help_that_teaches_by_example(kinfolk, name):
    result = kinfolk(name, "--help")
    assert result.exit_code == 0
    assert f"kinfolk {name}" in result.output.split("Examples:")[1]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_option_of_a_command_is_explained(name):
    command = cli.get_command(click.Context(cli), name)
    options = [p for p in command.params if isinstance(p, click.Option)]
    bare = [option.name for option in options if not option.help]
    assert bare == []


def test_the_version_is_printed(kinfolk):
    assert kinfolk("--version").output == f"kinfolk {__version__}\n"


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(kinfolk):
    result = kinfolk("inspekt")
    assert result.exit_code == 2
    assert "Did you mean 'inspect'?" in result.stderr


def test_a_model_in_place_of_a_command_is_answered_with_how_to_load_it(kinfolk):
    result = kinfolk("some/model.gguf")
    assert result.exit_code == 2
    assert "kinfolk run -m some/model.gguf" in result.stderr


def test_an_error_of_the_user_is_one_line_and_code_2(kinfolk, raising):
    raising(KinfolkError("the first\nand the second half"))
    result = kinfolk("plugins")
    assert result.exit_code == 2
    assert result.stderr == "error: the first and the second half\n"
    assert result.stdout == ""


def test_an_error_may_choose_its_exit_code(kinfolk, raising):
    error = KinfolkError("no")
    error.exit_code = 7
    raising(error)
    assert kinfolk("plugins").exit_code == 7


def test_a_bug_is_one_line_that_says_how_to_see_more(kinfolk, raising):
    raising(ZeroDivisionError("oh"))
    result = kinfolk("plugins")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "ZeroDivisionError: oh" in result.stderr
    assert "--debug" in result.stderr


@pytest.mark.parametrize("place", [("--debug", "plugins"), ("plugins", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(kinfolk, raising, place):
    raising(ZeroDivisionError("oh"))
    result = kinfolk(*place)
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr


def test_debug_behind_two_dashes_is_text(kinfolk, model):
    result = kinfolk("run", "-m", model, "-n", 1, "--raw", "--", "--debug")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("--debug")


@pytest.mark.parametrize(
    "words",
    [
        ("--log-level", "info", "tokenize"),
        ("--log-level=info", "tokenize"),
        ("tokenize", "--log-level", "info"),
        ("tokenize", "--log-level=info", "--debug"),
    ],
)
def test_the_log_level_is_one_of_every_command_wherever_it_stands(kinfolk, monkeypatch, words):
    from kinfolk.cli import tokenize

    seen = []
    read = tokenize.read_settings

    def reading(ctx):
        seen.append(read(ctx))
        return seen[-1]

    monkeypatch.setattr(tokenize, "read_settings", reading)
    monkeypatch.setenv("KINFOLK_LOG_LEVEL", "error")
    result = kinfolk(*words, "--text", "Hi")
    assert result.exit_code == 0, result.stderr
    assert [settings.log_level for settings in seen] == ["info"]


def test_a_log_level_that_is_none_is_told(kinfolk):
    result = kinfolk("tokenize", "--text", "Hi", "--log-level", "loud")
    assert result.exit_code == 2
    assert "--log-level: must be debug, info, warning or error" in result.stderr
    assert kinfolk("tokenize", "--log-level").exit_code == 2


def test_help_tells_the_options_of_every_command_and_what_exit_codes_mean(kinfolk):
    output = kinfolk("--help").output
    assert all(word in output for word in ("--log-level LEVEL", *choices_of("log_level")))
    assert all(f" {code} " in output for code in (0, 1, 2, 130, 141))


def test_interruption_ends_with_130_and_no_traceback(kinfolk, raising):
    raising(KeyboardInterrupt())
    result = kinfolk("plugins")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_running_out_of_memory_is_said_in_plain_words(kinfolk, raising):
    raising(MemoryError())
    assert "memory" in kinfolk("plugins").stderr


def test_a_full_disk_is_never_a_bug(kinfolk, raising):
    raising(OSError(errno.ENOSPC, "No space left on device", "some/file"))
    result = kinfolk("plugins")
    assert result.exit_code == 1
    assert result.stderr == "error: some/file: No space left on device\n"


# -- plugins --------------------------------------------------------------------------------------


def test_commands_of_plugins_are_listed_and_run(kinfolk, install):
    install("greeter", GREET)
    assert "greet  Say hello to NAME." in kinfolk("--help").output
    assert kinfolk("greet", "you").output == "hello you\n"


def test_a_broken_plugin_leaves_help_and_other_plugins_alone(kinfolk, install):
    install("greeter", GREET)
    install("wreck", BROKEN)
    result = kinfolk("--help")
    assert result.exit_code == 0
    assert "greet" in result.output
    assert kinfolk("greet", "you").output == "hello you\n"


def test_a_broken_plugin_is_told_by_plugins_and_doctor(kinfolk, install, model):
    install("wreck", BROKEN)
    listed = kinfolk("plugins")
    assert listed.exit_code == 0
    assert "FAILED" in listed.output
    assert "the plugin is broken" in listed.output
    checked = kinfolk("doctor", "-m", model)
    assert checked.exit_code == 1
    assert "the plugin is broken" in checked.output


def test_a_plugin_cannot_take_a_command_of_ours(kinfolk, install):
    install("thief", GREET.replace("def greet", "def run"))
    assert "Complete a prompt" in kinfolk("--help").output
    assert "CONFLICT" in kinfolk("plugins").output


def test_strict_plugins_do_not_take_help_away(kinfolk, install, monkeypatch):
    install("wreck", BROKEN)
    monkeypatch.setenv("KINFOLK_STRICT_PLUGINS", "1")
    result = kinfolk("--help")
    assert result.exit_code == 0
    assert "commands of plugins are not available" in result.stderr
    assert kinfolk("tokenize", "x.gguf", "--text", "x").exit_code == 2


# -- settings -------------------------------------------------------------------------------------


def test_a_bad_value_names_its_flag(kinfolk, model):
    result = kinfolk("run", "-m", model, "--dtype", "f33", "Hi")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --dtype: ")


def test_a_bad_value_names_its_variable(kinfolk, model, monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOTS", "none")
    result = kinfolk("run", "-m", model, "Hi")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: KINFOLK_SLOTS: ")


def test_a_misspelt_variable_is_mentioned(kinfolk, model, monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOT", "3")
    result = kinfolk("tokenize", model, "--text", "x")
    assert result.exit_code == 0
    assert "KINFOLK_SLOT is not a setting of kinfolk; did you mean KINFOLK_SLOTS?" in result.stderr


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_no_machine_has_is_refused(kinfolk, port):
    result = kinfolk("serve", "--port", port)
    assert result.exit_code == 2
    assert "'--port'" in result.stderr


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_is_a_number_of_64_bits(kinfolk, seed, tmp_path):
    result = kinfolk("synth", "qwen3.5-0.8b", tmp_path / "x.gguf", "--seed", seed)
    assert result.exit_code == 2
    assert "'--seed'" in result.stderr

"""The command line: finds commands, and turns what goes wrong into one line and an exit code.

Importing this loads no command. A command's module is imported when it runs or is asked for help;
plugins are asked for commands only when help lists them or a name is none of ours.
"""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from kinfolk.cli.streams import OutputLost, guard_streams
from kinfolk.door import REFUSALS, cause
from kinfolk.errors import DISK_FULL, KinfolkError, PluginError
from kinfolk.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kinfolk.guarded import GuardedCommand

BUILT_IN: Final[Mapping[str, str]] = {
    "run": "Complete a prompt, or answer it with a chat model.",
    "chat": "Talk to a model.",
    "serve": "Answer OpenAI clients over HTTP.",
    "bench": "Measure how fast a model reads and writes.",
    "inspect": "Show what a model file holds.",
    "plan": "Show what a model will take of the device's memory, and what fits.",
    "tokenize": "Cut a text into the tokens of a model.",
    "logits": "Write a model's logits for given tokens to a file.",
    "perplexity": "Score a text: perplexity and bits per byte.",
    "convert": "Make a GGUF file of a Hugging Face model.",
    "synth": "Make a model file of a released shape with random weights.",
    "new-family": "Write a plugin for a new model family, ready to be changed.",
    "check": "Check an installed model family with the conformance kit.",
    "plugins": "List installed plugins, what they bring, and what is wrong with them.",
    "doctor": "Check this installation and machine.",
}
"""Command -> what help says of it. That of ``x-y`` is ``kinfolk.cli.x_y:x_y``."""

INTERRUPTED: Final = 130
UNEXPECTED: Final = 1
DEBUG: Final = "--debug"
LOG_LEVEL: Final = "--log-level"

_BROUGHT: Final = f"{__name__}.plugin_commands"
_LEAVING: Final = (
    *(click.ClickException, click.Abort, click.exceptions.Exit),
    *(EOFError, OutputLost, BrokenPipeError, *REFUSALS),
)
"""What a command may raise to end the program."""


class CommandLine(click.Group):
    """The top of the command line: our commands, and those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*BUILT_IN, *_shown(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in BUILT_IN:
            module = cmd_name.replace("-", "_")
            command: click.Command = getattr(import_module(f"kinfolk.cli.{module}"), module)
            return command
        brought = _plugin_commands(ctx).get(cmd_name)
        return None if brought is None else brought.command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            _fail_on_unknown(ctx, name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. What one of a plugin raises is blamed on the plugin."""
        try:
            return super().invoke(ctx)
        except _LEAVING:
            raise
        except Exception as error:
            if ctx.invoked_subcommand is None or ctx.invoked_subcommand in BUILT_IN:
                raise
            who = _plugin_commands(ctx)[ctx.invoked_subcommand].who
            raise PluginError(f"{who} failed: {cause(error)}") from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin like this; no command is imported for it."""
        from click.shell_completion import CompletionItem

        helps = {**BUILT_IN, **dict.fromkeys(_shown(ctx))}
        found = [CompletionItem(name, help=helps[name]) for name in helps]
        found = [item for item in found if item.value.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(BUILT_IN.items()))
        shown = _shown(ctx)
        if shown:
            with formatter.section("Commands of plugins"):
                limit = formatter.width - 6 - max(map(len, shown))
                brought = _plugin_commands(ctx)
                formatter.write_dl([(name, _line_of_help(brought[name], limit)) for name in shown])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and leave the process with the exit code unless ``standalone_mode`` is off."""
        given = list(sys.argv[1:] if args is None else args)
        given, debug = _globals_first(given)
        if not standalone_mode:
            return super().main(given, prog_name, complete_var, False, **extra)
        try:
            result = super().main(given, prog_name, complete_var, False, **extra)
            sys.stdout.flush()
            code = result if isinstance(result, int) else 0
        except click.ClickException as error:
            code = _show(error)
        except click.Abort:
            code = INTERRUPTED
        except OutputLost as lost:
            if str(lost):
                _say(str(lost))
            code = lost.exit_code
        except Exception as error:
            code = _report(error, debug)
        sys.exit(code)


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  kinfolk run "def fibonacci(n):"             the bundled model, no download
  kinfolk run -m model.gguf "Why is the sky blue?"
  kinfolk chat -m model.gguf
  kinfolk serve -m model.gguf --port 8080
  kinfolk COMMAND --help                      more about each command""",
)
@click.version_option(__version__, prog_name="kinfolk", message="%(prog)s %(version)s")
@click.option(DEBUG, is_flag=True, help="Show the traceback of an error.")
@click.option(
    LOG_LEVEL,
    metavar="LEVEL",
    help="Least severity of log lines that are shown: debug, info, warning or error. "
    "[KINFOLK_LOG_LEVEL]",
)
def cli(debug: bool, log_level: str | None) -> None:
    """Run language models on this machine.

    Model families are plugins: whatever file an installed family claims can be loaded.

    Options of this page may stand behind a command too. Exit codes: 0 done; 1 it failed: a disk is
    full, stdout closed, a check not passed; 2 a mistake in what was asked; 130 interrupted; 141
    nobody reads the output any more.
    """


def main() -> None:
    """Entry point of the ``kinfolk`` program."""
    guard_streams()
    cli.main(prog_name="kinfolk")


def _globals_first(args: list[str]) -> tuple[list[str], bool]:
    """The arguments with the options of the program itself in front of the command, wherever up to
    a ``--`` they stood; and whether ``--debug`` is among them."""
    end = args.index("--") if "--" in args else len(args)
    ours: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word == LOG_LEVEL:
            ours += [word, *islice(words, 1)]
        elif word == DEBUG or word.startswith(f"{LOG_LEVEL}="):
            ours.append(word)
        else:
            rest.append(word)
    return ours + rest + args[end:], DEBUG in ours


def _show(error: click.ClickException) -> int:
    """Show an error as click does, with the usage of the command; the exit code."""
    try:
        error.show()
    except Exception:  # a command of a plugin may fail to say how it is used
        _say(error.format_message())
    return error.exit_code


def _report(error: Exception, debug: bool) -> int:
    """Say what went wrong on stderr; the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KinfolkError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        _say("this machine has not enough memory for that")
    elif isinstance(error, OSError) and error.errno in DISK_FULL:
        _say(f"{error.filename or 'a file'}: {error.strerror}")
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hint = "" if debug else f"; add {DEBUG} to see where"
        _say(f"unexpected {text}; this is a bug of kinfolk or of a plugin{hint}")
    return UNEXPECTED


def _say(message: str) -> None:
    click.echo("error: " + " ".join(message.split("\n")), err=True)


def _fail_on_unknown(ctx: click.Context, name: str) -> NoReturn:
    if Path(name).is_file() or name.endswith(".gguf"):
        hint = f'To load a model: kinfolk run -m {name} "your prompt"'
    else:
        close = difflib.get_close_matches(name, [*BUILT_IN, *_shown(ctx)], n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "'kinfolk --help' lists all commands."
    ctx.fail(f"No such command {name!r}. {hint}")


def _shown(ctx: click.Context) -> list[str]:
    """Names of plugins' commands, but for hidden ones."""
    brought = _plugin_commands(ctx)
    return sorted(name for name, command in brought.items() if not command.hidden)


def _line_of_help(command: GuardedCommand, limit: int) -> str:
    try:
        return command.short_help(limit)
    except PluginError:
        return "its help is broken: see 'kinfolk plugins'"


def _plugin_commands(ctx: click.Context) -> Mapping[str, GuardedCommand]:
    """Commands that installed plugins bring, asked for once; a plugin that is broken brings none.

    What is wrong with it is told by ``kinfolk plugins``: help must work whatever is installed.
    """
    if _BROUGHT not in ctx.meta:
        ctx.meta[_BROUGHT] = _discover_commands()
    found: Mapping[str, GuardedCommand] = ctx.meta[_BROUGHT]
    return found


def _discover_commands() -> Mapping[str, GuardedCommand]:
    from kinfolk.registry import Registry
    from kinfolk.settings import load_settings

    try:
        registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    except KinfolkError as error:
        click.echo(f"warning: commands of plugins are not available: {error}", err=True)
        return {}
    return {name: provided.value for name, provided in registry.commands.items()}

"""Entry point of the command line: finds commands, and maps errors to one line and an exit code.

A command's module is imported when the command runs or shows its help. Plugins are discovered only
to list commands in the help or to resolve a name that is not built in.
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

from kinfolk.cli.signals import exit_if_one_came, unwind_on_signals
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
    "serve": "Serve a model over HTTP with the OpenAI API.",
    "daemon": "Serve several requests over lines and frames of integers.",
    "bench": "Measure prefill and decode speed.",
    "inspect": "Show metadata and tensors of a model file.",
    "plan": "Show how a model would divide the device's memory, and what fits.",
    "tokenize": "Split a text into the tokens of a model.",
    "logits": "Write a model's logits for given tokens to a file.",
    "perplexity": "Score a text: perplexity and bits per byte.",
    "cache": "Show, check and remove the prefixes that are kept on the disk.",
    "convert": "Convert a Hugging Face model to a GGUF file.",
    "train-drafter": "Train a drafter for a model, which makes it faster.",
    "synth": "Write a model file of a released shape with random weights.",
    "new-family": "Write a plugin for a new model family, as a starting point.",
    "check": "Check an installed model family with the conformance kit.",
    "plugins": "List installed plugins, what they provide, and their problems.",
    "doctor": "Check this installation and machine.",
}
"""Command -> its line in the help. The command ``x-y`` is ``kinfolk.cli.x_y:x_y``."""

EXIT_INTERRUPTED: Final = 130
EXIT_UNEXPECTED: Final = 1
DEBUG: Final = "--debug"
LOG_LEVEL: Final = "--log-level"

_PLUGIN_COMMANDS: Final = f"{__name__}.plugin_commands"
_EXIT_EXCEPTIONS: Final = (
    *(click.ClickException, click.Abort, click.exceptions.Exit),
    *(EOFError, OutputLost, BrokenPipeError, *REFUSALS),
)
"""Exceptions by which a command ends the program; :meth:`CommandLine.main` maps them to a code."""


class CommandLine(click.Group):
    """The root command: built-in commands, and those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*BUILT_IN, *_visible_names(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in BUILT_IN:
            module = cmd_name.replace("-", "_")
            command: click.Command = getattr(import_module(f"kinfolk.cli.{module}"), module)
            return command
        guarded = _plugin_commands(ctx).get(cmd_name)
        return None if guarded is None else guarded.command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            _fail_on_unknown(ctx, name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An exception of a plugin's command becomes a :class:`PluginError`."""
        try:
            return super().invoke(ctx)
        except _EXIT_EXCEPTIONS:
            raise
        except Exception as error:
            if ctx.invoked_subcommand is None or ctx.invoked_subcommand in BUILT_IN:
                raise
            who = _plugin_commands(ctx)[ctx.invoked_subcommand].who
            raise PluginError(f"{who} failed: {cause(error)}") from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin with ``incomplete``, without importing any command."""
        from click.shell_completion import CompletionItem

        helps = {**BUILT_IN, **dict.fromkeys(_visible_names(ctx))}
        commands = [
            CompletionItem(name, help=text)
            for name, text in helps.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(BUILT_IN.items()))
        names = _visible_names(ctx)
        if names:
            with formatter.section("Commands of plugins"):
                limit = formatter.width - 6 - max(map(len, names))
                commands = _plugin_commands(ctx)
                formatter.write_dl([(name, _short_help(commands[name], limit)) for name in names])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and end the process with the exit code unless ``standalone_mode`` is off."""
        arguments = list(sys.argv[1:] if args is None else args)
        arguments, debug = _globals_first(arguments)
        if not standalone_mode:
            return super().main(arguments, prog_name, complete_var, False, **extra)
        try:
            result = super().main(arguments, prog_name, complete_var, False, **extra)
            sys.stdout.flush()
            code = result if isinstance(result, int) else 0
        except click.ClickException as error:
            code = _print_click_error(error)
        except click.Abort:
            code = EXIT_INTERRUPTED
        except OutputLost as lost:
            if str(lost):
                _print_error(str(lost))
            code = lost.exit_code
        except Exception as error:
            code = _print_exception(error, debug)
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
  kinfolk COMMAND --help                      options and examples of a command""",
)
@click.version_option(__version__, prog_name="kinfolk", message="%(prog)s %(version)s")
@click.option(DEBUG, is_flag=True, help="Show the traceback of an error.")
@click.option(
    LOG_LEVEL,
    metavar="LEVEL",
    help="Lowest severity of log lines to print: debug, info, warning or error. "
    "[KINFOLK_LOG_LEVEL]",
)
def cli(debug: bool, log_level: str | None) -> None:
    """Run language models on this machine.

    Model families are plugins: kinfolk loads every file that an installed family supports.

    The options on this page may also follow the command.

    \b
    Exit codes:
      0    success
      1    failure, such as a full disk, a closed stdout or a failed check
      2    invalid arguments or input
      130  interrupted
      141  stdout is a pipe that nothing reads any more
      143  ended by SIGTERM (129 by SIGHUP)
    """


def main() -> None:
    """Entry point of the ``kinfolk`` program."""
    guard_streams()
    unwind_on_signals()
    try:
        cli.main(prog_name="kinfolk")
    finally:
        exit_if_one_came()


def _globals_first(args: list[str]) -> tuple[list[str], bool]:
    """The arguments with the global options moved to the front (up to a ``--``), and whether
    ``--debug`` is among them."""
    end = args.index("--") if "--" in args else len(args)
    global_options: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word == LOG_LEVEL:
            global_options += [word, *islice(words, 1)]
        elif word == DEBUG or word.startswith(f"{LOG_LEVEL}="):
            global_options.append(word)
        else:
            rest.append(word)
    return global_options + rest + args[end:], DEBUG in global_options


def _print_click_error(error: click.ClickException) -> int:
    """Print an error as click does, with the usage of the command; returns the exit code."""
    try:
        error.show()
    except Exception:  # a plugin's command may fail to format its usage
        _print_error(error.format_message())
    return error.exit_code


def _print_exception(error: Exception, debug: bool) -> int:
    """Print an exception on stderr; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KinfolkError):
        _print_error(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        _print_error("out of memory: this machine has too little for the command")
    elif isinstance(error, OSError) and error.errno in DISK_FULL:
        _print_error(f"{error.filename or 'a file'}: {error.strerror}")
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hint = "" if debug else f"; add {DEBUG} to see the traceback"
        _print_error(f"unexpected {text}; this is a bug of kinfolk or of a plugin{hint}")
    return EXIT_UNEXPECTED


def _print_error(message: str) -> None:
    click.echo("error: " + " ".join(message.split("\n")), err=True)


def _fail_on_unknown(ctx: click.Context, name: str) -> NoReturn:
    if Path(name).is_file() or name.endswith(".gguf"):
        hint = f'To load a model: kinfolk run -m {name} "your prompt"'
    else:
        close = difflib.get_close_matches(name, [*BUILT_IN, *_visible_names(ctx)], n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "'kinfolk --help' lists all commands."
    ctx.fail(f"No such command {name!r}. {hint}")


def _visible_names(ctx: click.Context) -> list[str]:
    """Names of plugins' commands that are not hidden."""
    commands = _plugin_commands(ctx)
    return sorted(name for name, command in commands.items() if not command.hidden)


def _short_help(command: GuardedCommand, limit: int) -> str:
    try:
        return command.short_help(limit)
    except PluginError:
        return "its help is broken: see 'kinfolk plugins'"


def _plugin_commands(ctx: click.Context) -> Mapping[str, GuardedCommand]:
    """Commands of installed plugins, discovered once. A broken plugin has none here, so that help
    works whatever is installed; ``kinfolk plugins`` reports its problem.
    """
    if _PLUGIN_COMMANDS not in ctx.meta:
        ctx.meta[_PLUGIN_COMMANDS] = _discover_commands()
    commands: Mapping[str, GuardedCommand] = ctx.meta[_PLUGIN_COMMANDS]
    return commands


def _discover_commands() -> Mapping[str, GuardedCommand]:
    from kinfolk.registry import Registry
    from kinfolk.settings import load_settings

    try:
        registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    except KinfolkError as error:
        click.echo(f"warning: commands of plugins are not available: {error}", err=True)
        return {}
    return {name: provided.value for name, provided in registry.commands.items()}

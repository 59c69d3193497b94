"""``kinfolk chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.console import dim, note
from kinfolk.cli.loading import Requirements, open_runtime, read_settings
from kinfolk.cli.options import (
    COMPRESSION,
    ENGINE,
    LOADING,
    PREFIXES,
    generation_options,
    model_argument,
    sampling_options,
    settings_options,
)
from kinfolk.cli.run import raise_failure, speed
from kinfolk.cli.signals import Terminated
from kinfolk.cli.text_input import Lines, errors_option, text_argument
from kinfolk.errors import ContextLengthExceeded, KinfolkError, RequestError

if TYPE_CHECKING:
    from kinfolk.engine.answer import Ended
    from kinfolk.engine.compression import Compressor
    from kinfolk.engine.options import GenerationOptions
    from kinfolk.engine.runtime import Runtime

HELP: Final = """\
/system TEXT  clear the conversation and set the system message; without TEXT, remove it
/reset        clear the conversation, keep the system message
/stats        switch the line about speed on or off
/help         show this list
/exit         leave, like Ctrl-D
Ctrl-C stops an answer; its text so far stays in the conversation."""

PROMPT: Final = "> "


@click.command(
    epilog="""\b
Examples:
  kinfolk chat -m model.gguf
  kinfolk chat -m model.gguf --system "Answer in one sentence." --temperature 0"""
)
@model_argument
@errors_option
@click.option(
    "--system", callback=text_argument, metavar="TEXT", help="System message of the conversation."
)
@click.option("--stats", is_flag=True, help="Print the speed of each answer.")
@sampling_options
@settings_options(*LOADING, *ENGINE, *PREFIXES, *COMPRESSION)
@click.pass_context
def chat(ctx: click.Context, /, model: str | None, **params: Any) -> None:
    """Talk to the model in FILE, or to the bundled model; /reset clears the conversation.

    /help lists the commands. If stdin is not a terminal, each line of it is a question.
    """
    settings = read_settings(ctx, slots=1)
    with open_runtime(settings, model, Requirements(chat_template=True)) as runtime:
        from kinfolk.engine.compression import compressor_of

        if runtime.card is not None and not runtime.card.chat:
            note(f"warning: {runtime.name!r} is not a chat model")
        options = generation_options(params)
        compressor = compressor_of(runtime, settings)
        conversation = Conversation(runtime, options, params["system"], params["stats"], compressor)
        conversation.run(Lines(params["errors"]))


class Conversation:
    """The messages so far, and the loop that reads questions and answers them."""

    def __init__(
        self,
        runtime: Runtime,
        options: GenerationOptions,
        system: str | None,
        stats: bool,
        compressor: Compressor | None,
    ):
        self._compressor = compressor
        self._runtime = runtime
        self._options = options
        self._system = system
        self._stats = stats
        self._messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def run(self, lines: Lines) -> None:
        """Read and answer until the end of input or /exit."""
        if sys.stdin.isatty():
            note(dim(f"{self._runtime.name}: /help for help, Ctrl-D to leave"))
        while (line := read_line(lines)) is not None:
            if not line.strip():
                continue
            if not line.startswith("/"):
                self._answer(line)
            elif not self._execute(*line[1:].partition(" ")[::2]):
                return

    def _execute(self, command: str, rest: str) -> bool:
        """Execute a command; false = leave."""
        if command in ("exit", "quit"):
            return False
        if command == "reset":
            self.reset()
        elif command == "system":
            self._system = rest.strip() or None
            self.reset()
        elif command == "stats":
            self._stats = not self._stats
        elif command == "help":
            note(HELP)
        else:
            note(f"there is no command /{command}; /help lists them")
        return True

    def _answer(self, question: str) -> None:
        self._messages.append({"role": "user", "content": question})
        answer = {"role": "assistant", "content": ""}
        try:
            self._generate(answer)
        except Terminated:
            raise
        except KeyboardInterrupt:
            note(dim("\n(stopped)"))
        except KinfolkError as error:
            # Drop the question that failed and go on.
            note(f"error: {self._error_message(error)}")
            self._messages.pop()
            return
        self._messages.append(answer)

    def _error_message(self, error: KinfolkError) -> str:
        """The message of an error; for a full context, advice in terms of the conversation."""
        if not isinstance(error, ContextLengthExceeded):
            return str(error)
        limit = f"the maximum context length is {error.context} tokens"
        larger = ", or start with a larger --context" if self._can_enlarge_context() else ""
        if any(message["role"] == "assistant" for message in self._messages):
            return (
                f"{limit}, and with this question the conversation has {error.prompt_tokens}; "
                f"clear it with /reset{larger}"
            )
        return f"{limit}, and the question has {error.prompt_tokens}; shorten it{larger}"

    def _can_enlarge_context(self) -> bool:
        return bool(self._runtime.info.context < self._runtime.config.context)

    def _generate(self, answer: dict[str, str]) -> None:
        from kinfolk.engine.answer import Ended, TextPiece
        from kinfolk.engine.compression import ChatSource
        from kinfolk.engine.generation import Generation
        from kinfolk.engine.prompt import chat_prompt

        prompt = chat_prompt(self._runtime, self._messages)
        if self._compressor is not None:
            source = ChatSource(list(self._messages), {})
            prompt = self._compressor.compressed(self._runtime, prompt, source)
        generation = Generation(self._runtime, prompt, self._options)
        with closing(generation.pieces()) as pieces:
            last = "content"
            for piece in pieces:
                if isinstance(piece, Ended):
                    self._end(piece)
                    return
                if not isinstance(piece, TextPiece):
                    continue  # a tool call: this command offers no tools
                if piece.kind != last:
                    click.echo("\n\n" if last == "reasoning" else "", nl=False)
                    last = piece.kind
                field = "content" if piece.kind == "content" else "reasoning_content"
                answer[field] = answer.get(field, "") + piece.text
                muted = piece.kind == "reasoning" and sys.stdout.isatty()
                click.echo(dim(piece.text) if muted else piece.text, nl=False)

    def _end(self, end: Ended) -> None:
        raise_failure(end)
        click.echo()
        if end.usage.prompt + end.tokens >= self._runtime.info.context:
            note(dim("(cut off: the context is full; /reset clears the conversation)"))
        if self._stats:
            note(dim(speed(end)))


def read_line(lines: Lines) -> str | None:
    """The next line, or ``None`` at the end. Ctrl-C discards the typed line."""
    if not sys.stdin.isatty():
        return lines.read()
    with suppress(ImportError):  # line editing and history for input(), if available
        import readline  # noqa: F401
    while True:
        try:
            return lines.ask(PROMPT)
        except EOFError:
            note("")
            return None
        except RequestError as error:
            note(f"error: {error}")
        except Terminated:
            raise
        except KeyboardInterrupt:
            note("\n" + dim("(Ctrl-D or /exit to leave)"))

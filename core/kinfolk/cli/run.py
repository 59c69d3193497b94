"""``kinfolk run``: completes or answers one prompt."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.console import dim, note, on_terminal, print_json
from kinfolk.cli.loading import Requirements, open_runtime, read_settings
from kinfolk.cli.options import (
    COMPRESSION,
    ENGINE,
    LOADING,
    PREFIXES,
    generation_options,
    json_option,
    model_option,
    sampling_options,
    settings_options,
)
from kinfolk.cli.text_input import errors_option, read_stdin, read_text, text_argument
from kinfolk.errors import EngineError, SettingsError

if TYPE_CHECKING:
    from kinfolk.engine.answer import Ended
    from kinfolk.engine.generation import Generation
    from kinfolk.engine.prompt import Prompt
    from kinfolk.engine.runtime import Runtime
    from kinfolk.settings import Settings


_KEPT_CHECKPOINTS: Final = 2
"""Checkpoints of a prompt that the disk keeps: its last header, and the end of the answer."""


@click.command(
    epilog="""\b
Examples:
  kinfolk run "def fibonacci(n):"
  kinfolk run -m model.gguf "Why is the sky blue?"
  kinfolk run -m model.gguf -f question.txt
  kinfolk run -m model.gguf --raw -n 64 "Once upon a time"
  kinfolk run --json --seed 1 "import os" """
)
@click.argument("prompt", nargs=-1, callback=text_argument)
@model_option
@errors_option
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    help="Read the prompt from a file, - = stdin. No line end is removed.",
)
@click.option(
    "--raw/--chat",
    default=None,
    help="Complete the plain text, or answer it with the model's chat template. "
    "Default: by the model's card, else chat if the file has a template.",
)
@click.option(
    "--system",
    callback=text_argument,
    metavar="TEXT",
    help="System message in front of the prompt.",
)
@click.option(
    "--echo/--no-echo",
    default=None,
    help="Repeat the prompt before its completion. Default: only with --raw.",
)
@click.option("--stats/--no-stats", default=None, help="Print the speed. Default: on a terminal.")
@json_option
@sampling_options
@settings_options(*LOADING, *ENGINE, *PREFIXES, *COMPRESSION)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    prompt: tuple[str, ...],
    model: str | None,
    file: str | None,
    **params: Any,
) -> None:
    """Complete PROMPT, or answer it with a chat model.

    Without PROMPT the text is read from stdin. Without -m the bundled model completes Python. The
    answer is streamed to stdout; Ctrl-C stops it.
    """
    if params["raw"] and params["system"]:
        raise SettingsError("--system needs the chat template, which --raw does not use")
    text = _prompt_text(prompt, file, model, params["errors"])
    settings = read_settings(ctx, slots=1, checkpoints=0)
    if settings.cache_disk and not settings.asked("checkpoints"):
        settings = settings.model_copy(update={"checkpoints": _KEPT_CHECKPOINTS})
    options = generation_options(params)
    started = time.perf_counter()
    need = Requirements(chat_template=params["raw"] is False)
    with open_runtime(settings, model, need) as runtime:
        from kinfolk.engine.generation import Generation

        loading = time.perf_counter() - started
        raw = is_raw(runtime, params["raw"])
        start = _start(runtime, settings, text, params["system"], raw)
        generation = Generation(runtime, start, options)
        if params["as_json"]:
            print_json({**_as_json(runtime, generation), "load_seconds": round(loading, 4)})
            return
        if raw if params["echo"] is None else params["echo"]:
            click.echo(text, nl=False)
        end = _write(generation)
    if on_terminal() if params["stats"] is None else params["stats"]:
        note(dim(speed(end)))


def is_raw(runtime: Runtime, option: bool | None) -> bool:
    """Whether to complete the plain text: by the option, else by the model's card and template."""
    if option is not None:
        return option
    return runtime.chat is None or (runtime.card is not None and not runtime.card.chat)


def speed(end: Ended) -> str:
    """``128 tokens at 45.2 tok/s, first after 0.31 s``"""
    rate = (end.tokens - 1) / end.timings.decode if end.timings.decode > 0 else 0.0
    cached = f", {end.usage.reused} cached" if end.usage.reused else ""
    counts, drafts = end.usage.drafts, ""
    if counts.steps:
        drafts = (
            f", {counts.accepted}/{counts.drafted} drafts, {counts.accept_length:.2f} tokens a "
            "drafting step"
        )
    return (
        f"{end.tokens} tokens at {rate:.1f} tok/s, first after {end.timings.prompt:.2f} s "
        f"({end.usage.prompt} in the prompt{cached}){drafts}, {end.reason.value}"
        f"{'' if end.usage.exact else ', not exact (--kvflash)'}"
    )


def _prompt_text(words: tuple[str, ...], file: str | None, model: str | None, errors: str) -> str:
    if file is not None:
        if words:
            raise click.UsageError(f"two prompts are named, {' '.join(words)!r} and --file {file}")
        return read_text(file, errors)
    if len(words) == 1 and model is None and _is_file(words[0]):
        raise SettingsError(
            f"{words[0]!r} is a file, not a prompt; to load a model from it: "
            f'kinfolk run -m {words[0]} "your prompt"'
        )
    if words:
        return " ".join(words)
    if sys.stdin.isatty():
        raise click.UsageError('name a prompt, as in: kinfolk run "def fibonacci(n):"')
    return read_stdin(errors)


def _is_file(word: str) -> bool:
    if word.endswith(".gguf"):
        return True
    try:
        return Path(word).is_file()
    except OSError:  # a prompt can be longer than any file name
        return False


def _start(
    runtime: Runtime, settings: Settings, text: str, system: str | None, raw: bool
) -> Prompt:
    from kinfolk.engine.compression import ChatSource, Source, TextSource, compressor_of
    from kinfolk.engine.prompt import chat_prompt, text_prompt
    from kinfolk.text.tokenizer import well_formed

    source: Source
    if raw:
        if system:
            raise SettingsError(
                f"{runtime.name!r} completes plain text, but --system needs a chat template; "
                + ("use the model's with --chat" if runtime.chat else "the model has none")
            )
        prompt, source = text_prompt(runtime, text), TextSource(well_formed(text))
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        prompt, source = chat_prompt(runtime, messages), ChatSource(messages, {})
    compressor = compressor_of(runtime, settings)
    return prompt if compressor is None else compressor.compressed(runtime, prompt, source)


def _write(generation: Generation) -> Ended:
    """Print the answer as it arrives; reasoning goes to stderr, on a terminal only."""
    from kinfolk.engine.answer import Ended, TextPiece

    thinking = False
    with closing(generation.pieces()) as pieces:
        for piece in pieces:
            if isinstance(piece, Ended):
                click.echo()
                raise_failure(piece)
                return piece
            if not isinstance(piece, TextPiece):
                continue  # a tool call: this command offers no tools
            if piece.kind == "content":
                if thinking:
                    note("\n")
                thinking = False
                click.echo(piece.text, nl=False)
            elif on_terminal():
                thinking = True
                click.echo(dim(piece.text), nl=False, err=True)
    raise EngineError("the answer broke off")


def raise_failure(end: Ended) -> None:
    """Raise :class:`EngineError` if the answer ended with an error."""
    if end.error is not None:
        raise EngineError(end.error)


def _compression(prompt: Prompt) -> dict[str, Any]:
    done = prompt.compression
    if done is None:
        return {}
    return {"original_tokens": done.original, "compression_skipped": done.skipped}


def _as_json(runtime: Runtime, generation: Generation) -> dict[str, Any]:
    from kinfolk.engine.answer import Ended, TextPiece

    texts = {"content": "", "reasoning": ""}
    for piece in generation:
        if isinstance(piece, TextPiece):
            texts[piece.kind] += piece.text
        if not isinstance(piece, Ended):
            continue
        raise_failure(piece)
        return {
            "model": runtime.name,
            "text": texts["content"],
            **({"reasoning": texts["reasoning"]} if texts["reasoning"] else {}),
            "finish_reason": piece.reason.value,
            "seed": generation.requests[0].sampling.seed,
            "prompt_tokens": piece.usage.prompt,
            **_compression(generation.prompt),
            "cached_tokens": piece.usage.reused,
            "cached_tokens_from": piece.usage.reused_from,
            "exact": piece.usage.exact,
            "completion_tokens": piece.tokens,
            "draft_steps": piece.usage.drafts.steps,
            "drafted_tokens": piece.usage.drafted,
            "accepted_tokens": piece.usage.accepted,
            "accept_length": round(piece.usage.drafts.accept_length, 3),
            "accept_rate": round(piece.usage.drafts.accept_rate, 3),
            "first_token_seconds": round(piece.timings.prompt, 4),
            "decode_seconds": round(piece.timings.decode, 4),
        }
    raise EngineError("the answer broke off")

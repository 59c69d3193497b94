"""``kinfolk perplexity``: perplexity and bits per byte of a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from kinfolk.cli.console import ProgressBar, print_json
from kinfolk.cli.loading import check_model, discover, model_path, open_model, read_settings
from kinfolk.cli.options import (
    LOADING,
    json_option,
    model_option,
    one_model,
    settings_options,
)
from kinfolk.cli.text_input import decode, errors_option, read_bytes
from kinfolk.errors import RequestError, SettingsError
from kinfolk.text.utf8 import original_sizes

if TYPE_CHECKING:
    from kinfolk.engine.loading import LoadedModel
    from kinfolk.text.tokenizer import Tokenizer

WINDOW: Final = 2048
"""Default length of a window in tokens."""


@click.command(
    epilog="""\b
Examples:
  kinfolk perplexity model.gguf book.txt
  kinfolk perplexity -m model.gguf book.txt --context 2048 --stride 1024 --json
  cat book.txt | kinfolk perplexity model.gguf -"""
)
@click.argument("files", nargs=-1, metavar="[FILE] TEXT")
@model_option
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    help="Tokens from the start of one window to the next. Default: the window's length. A smaller "
    "stride gives every token a longer context.",
)
@errors_option
@json_option
@settings_options(*LOADING, "context", "kv_codec", "v_codec")
@click.pass_context
def perplexity(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    model: str | None,
    stride: int | None,
    errors: str,
    as_json: bool,
    **rest: Any,
) -> None:
    """Score the text in the file TEXT with the model in FILE, or with the bundled model.

    The text is split into windows of --context tokens (default 2048). Every token is scored once,
    from the tokens before it in its window; the first token of a window is scored only if an
    earlier window covers it. Bits per byte divide by the bytes of TEXT that the scored tokens
    cover, so models with different vocabularies can be compared.
    """
    model, name = _model_and_text(files, model)
    raw = read_bytes(name)
    text = decode(raw, "stdin" if name == "-" else name, errors)
    settings = read_settings(ctx, slots=1, checkpoints=0, context=WINDOW)
    if settings.context is not None:
        if settings.context < 2:
            raise SettingsError("--context must be at least 2: no token of a window of 1 is scored")
        _check_stride(stride, settings.context)
    registry = discover(settings)
    path = model_path(model, registry)
    check_model(path, settings, registry)
    from kinfolk.engine.text import open_text

    tokenizer, _, _ = open_text(path, settings, registry)
    tokens = tokenizer.encode(text)
    if len(tokens) < 2:
        raise RequestError(f"{name}: a text of at least two tokens is needed")
    sizes = original_sizes(raw, written_sizes(tokenizer, tokens))
    score = Score()
    with open_model(settings, str(path)) as loaded:
        window = loaded.limits.context
        _check_stride(stride, window)
        spans = list(windows(len(tokens), window, stride or window))
        with ProgressBar("scoring") as progress:
            for number, (start, stop, first) in enumerate(spans):
                losses = token_losses(loaded, tokens[start:stop])[first - start - 1 :]
                score = score.plus(math.fsum(losses), stop - first, sum(sizes[first:stop]))
                progress(number + 1, len(spans), f"perplexity {score.perplexity:.3f}")
    _report(score, window, as_json)


def _model_and_text(files: tuple[str, ...], model: str | None) -> tuple[str | None, str]:
    """(model or ``None``, file of the text)."""
    if not 1 <= len(files) <= 2:
        raise click.UsageError("name the text to score, and in front of it the model")
    file, text = (None, *files)[-2:]
    assert text is not None
    if text.endswith(".gguf"):
        raise click.UsageError(f"{text} is a model: name the text to score behind it")
    return one_model(file, model), text


def _check_stride(stride: int | None, window: int) -> None:
    if stride is not None and stride > window:
        raise SettingsError(
            f"--stride {stride} is larger than the windows of {window} tokens, so tokens between "
            "them would not be scored; choose a smaller --stride or a larger --context"
        )


@dataclass(frozen=True, slots=True)
class Score:
    """``loss`` is the sum of -ln p over ``tokens`` tokens, which cover ``bytes`` bytes."""

    loss: float = 0.0
    tokens: int = 0
    bytes: int = 0

    def plus(self, loss: float, tokens: int, nbytes: int) -> Score:
        return Score(self.loss + loss, self.tokens + tokens, self.bytes + nbytes)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        return self.loss / math.log(2) / self.bytes if self.bytes else 0.0


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Windows (start, stop, first scored token) over ``count`` tokens.

    The first token of a window has no context and is not scored in it; no token is scored twice.
    """
    counted = 0
    for start in range(0, count, stride):
        stop = min(start + window, count)
        first = max(start + 1, counted)
        if first < stop:
            yield start, stop, first
        counted = stop
        if stop == count:
            return


def written_sizes(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """Bytes that each token of an encoded text decodes to; 0 for an added BOS."""
    pairs = zip([None, *tokens], tokens, strict=False)
    sizes = [len(tokenizer.bytes_after(before, token)) for before, token in pairs]
    return [0, *sizes[1:]] if tokenizer.adds_bos else sizes


def token_losses(loaded: LoadedModel, tokens: list[int]) -> list[float]:
    """-ln p of each token but the first, given the tokens before it: [len(tokens) - 1]."""
    import torch

    from kinfolk.engine.score import logits

    losses: list[float] = []
    position = 0
    for part in logits(loaded, tokens):
        following = tokens[position + 1 : position + 1 + len(part)]
        rows = part[: len(following)].float()
        targets = torch.tensor(following, device=rows.device)
        losses += torch.nn.functional.cross_entropy(rows, targets, reduction="none").tolist()
        position += len(part)
    return losses


def _report(score: Score, window: int, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "perplexity": score.perplexity,
                "bits_per_byte": score.bits_per_byte,
                "tokens": score.tokens,
                "bytes": score.bytes,
                "window": window,
            }
        )
        return
    click.echo(
        f"perplexity {score.perplexity:.4f}, {score.bits_per_byte:.4f} bits per byte "
        f"({score.tokens} tokens, {score.bytes} bytes, windows of {window})"
    )

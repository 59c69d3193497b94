"""``kinfolk tokenize``: splits a text into the tokens of a model."""

from __future__ import annotations

import json
from typing import Any

import click

from kinfolk.cli.console import table
from kinfolk.cli.loading import discover, model_path, read_settings
from kinfolk.cli.options import json_option, model_argument, settings_options
from kinfolk.cli.text_input import errors_option, read_stdin, text_argument


@click.command(
    epilog="""\b
Examples:
  kinfolk tokenize model.gguf --text "Hello, world"
  kinfolk tokenize model.gguf --json < file.txt
  kinfolk tokenize model.gguf --text "<|im_end|>" --no-special"""
)
@model_argument
@click.option("--text", callback=text_argument, help="The text. Default: all of stdin.")
@errors_option
@click.option(
    "--special/--no-special",
    default=True,
    help="Encode the texts of special tokens as those tokens, or as plain text.",
)
@json_option
@settings_options("model_family")
@click.pass_context
def tokenize(
    ctx: click.Context,
    /,
    model: str | None,
    text: str | None,
    errors: str,
    special: bool,
    as_json: bool,
    **rest: Any,
) -> None:
    """Split a text into the tokens of the model in FILE, or of the bundled model.

    Prints token ids and their texts; with --json, a list of ids. No BOS is added.
    """
    settings = read_settings(ctx)
    registry = discover(settings)
    path = model_path(model, registry)
    if text is None:
        text = read_stdin(errors)
    from kinfolk.engine.text import open_text

    tokenizer, _, _ = open_text(path, settings, registry)
    tokens = tokenizer.encode(text, add_bos=False, parse_special=special)
    if as_json:
        click.echo(json.dumps(tokens))
    elif tokens:
        rows = [(str(token), repr(_piece(tokenizer.token_bytes(token)))) for token in tokens]
        click.echo(table(rows))


def _piece(raw: bytes) -> str | bytes:
    """The bytes as text, or unchanged if they are not UTF-8: a token may be part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw

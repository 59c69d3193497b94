"""Text input from files, stdin and arguments: UTF-8, or with invalid bytes replaced."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, Final

import click

from kinfolk.errors import RequestError
from kinfolk.text.utf8 import fault

STRICT: Final = "strict"
REPLACE: Final = "replace"
ESCAPE: Final = "surrogateescape"
"""Python's error handler that keeps undecodable bytes of arguments."""

errors_option: Final = click.option(
    "--errors",
    type=click.Choice([STRICT, REPLACE]),
    default=STRICT,
    show_default=True,
    is_eager=True,  # the callbacks of arguments need its value
    help="Bytes that are not UTF-8: strict = an error, replace = U+FFFD in their place.",
)


def decode(raw: bytes, source: str, errors: str) -> str:
    """Bytes as text. Raises :class:`RequestError`, with ``source`` and offset, if not UTF-8."""
    try:
        return raw.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{source}: {fault(error)}; convert it to UTF-8, or replace such bytes by U+FFFD with "
            f"--errors {REPLACE}"
        ) from None


def read_bytes(path: str) -> bytes:
    """All bytes of a file, ``-`` = stdin. Raises :class:`RequestError`."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None


def read_text(path: str, errors: str) -> str:
    """All text of a file, ``-`` = stdin. Raises :class:`RequestError`."""
    return decode(read_bytes(path), "stdin" if path == "-" else path, errors)


def read_stdin(errors: str) -> str:
    """All text of stdin. Raises :class:`RequestError`."""
    return read_text("-", errors)


class Lines:
    """Reads stdin line by line, without line ends."""

    def __init__(self, errors: str):
        self._errors = errors
        self._number = 0

    def read(self) -> str | None:
        """The next line, ``None`` at the end. Raises :class:`RequestError` with the line's
        number."""
        raw = sys.stdin.buffer.readline()
        self._number += 1
        line = decode(raw, f"line {self._number} of stdin", self._errors)
        return line.rstrip("\r\n") if raw else None

    def ask(self, prompt: str) -> str:
        """The line that the user types after ``prompt``. Raises ``EOFError`` at the end."""
        if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors != ESCAPE:
            sys.stdin.reconfigure(errors=ESCAPE)
        return unescaped(input(prompt), "the typed line", self._errors)


def unescaped(text: str, source: str, errors: str) -> str:
    """A text with the undecodable bytes that Python kept in it decoded by ``errors``."""
    return decode(text.encode("utf-8", ESCAPE), source, errors)


def text_argument(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback that decodes text arguments, for commands with ``--errors``."""
    if isinstance(value, tuple):
        return tuple(text_argument(ctx, param, one) for one in value)
    if value is None:
        return None
    return unescaped(value, max(param.opts, key=len), ctx.params["errors"])

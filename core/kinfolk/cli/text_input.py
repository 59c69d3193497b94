"""Text from outside: files, stdin and arguments. It must be UTF-8 unless errors are replaced."""

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
"""How Python keeps bytes of arguments that it cannot read."""

errors_option: Final = click.option(
    "--errors",
    type=click.Choice([STRICT, REPLACE]),
    default=STRICT,
    show_default=True,
    is_eager=True,  # arguments are read by it
    help="What becomes of bytes that are not UTF-8: an error, or U+FFFD in their place.",
)


def decode(raw: bytes, source: str, errors: str) -> str:
    """Bytes as text; :class:`RequestError` with ``source`` and offset if they are not UTF-8."""
    try:
        return raw.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{source}: {fault(error)}; give it as UTF-8, or read U+FFFD in place of such bytes "
            f"with --errors {REPLACE}"
        ) from None


def read_bytes(path: str) -> bytes:
    """All of a file, or of stdin, which ``-`` stands for; :class:`RequestError` if that fails."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None


def read_text(path: str, errors: str) -> str:
    """All of a file as text, or of stdin, which ``-`` stands for."""
    return decode(read_bytes(path), "stdin" if path == "-" else path, errors)


def read_stdin(errors: str) -> str:
    """All of stdin as text."""
    return read_text("-", errors)


class Lines:
    """Lines of stdin, one after the other, without their ends."""

    def __init__(self, errors: str):
        self._errors = errors
        self._number = 0

    def read(self) -> str | None:
        """The next line, ``None`` at the end; :class:`RequestError` names a bad one by number."""
        raw = sys.stdin.buffer.readline()
        self._number += 1
        line = decode(raw, f"line {self._number} of stdin", self._errors)
        return line.rstrip("\r\n") if raw else None

    def ask(self, prompt: str) -> str:
        """The line that is typed behind ``prompt``."""
        if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors != ESCAPE:
            sys.stdin.reconfigure(errors=ESCAPE)
        return unescaped(input(prompt), "what was typed", self._errors)


def unescaped(text: str, source: str, errors: str) -> str:
    """A text in which Python may have kept bytes that it could not read."""
    return decode(text.encode("utf-8", ESCAPE), source, errors)


def text_argument(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The callback of arguments that are text, of commands with ``--errors``."""
    if isinstance(value, tuple):
        return tuple(text_argument(ctx, param, one) for one in value)
    if value is None:
        return None
    return unescaped(value, max(param.opts, key=len), ctx.params["errors"])

"""Stdin, stdout and stderr as the shell left them: closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Final

from kinfolk.errors import RequestError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

READER_GONE: Final = 141
"""What a shell reports of a program that SIGPIPE ended; Python's own do not receive it."""

LOST: Final = 1


class OutputLost(Exception):
    """Nothing more reaches stdout; the message is empty if nobody reads it any longer.

    Not a :class:`KinfolkError`: a command may go on after one of those, but not without stdout.
    """

    @property
    def exit_code(self) -> int:
        return LOST if str(self) else READER_GONE


def guard_streams() -> None:
    """Put guards in place of the program's own streams, before it opens any file.

    A stream that is closed gets a descriptor of which every use fails. Without it the next file
    to be opened would take its number, and what libraries print would be written into that file.
    """
    guards = (("stdin", 0, _Stdin), ("stdout", 1, _Stdout), ("stderr", 2, _Stderr))
    for name, number, guard in guards:
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # whoever put another one there reads or shows it
        if stream is None:
            wrong_way = os.O_WRONLY if guard is _Stdin else os.O_RDONLY
            number = os.open(os.devnull, wrong_way)
        setattr(sys, name, _guarded(guard, number, stream))


def _guarded(
    guard: type[io.FileIO], number: int, stream: io.TextIOWrapper | None
) -> io.TextIOWrapper:
    """A text stream over a guarded descriptor that is otherwise like ``stream``."""
    mode = "r" if guard is _Stdin else "w"
    raw = guard(number, mode, closefd=False)
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    if stream is None:
        return io.TextIOWrapper(buffer, "utf-8", "backslashreplace")
    # A name of a file may hold what is no text: it is shown somehow rather than not at all.
    unprintable = mode == "w" and stream.errors == "strict"
    return io.TextIOWrapper(
        buffer,
        stream.encoding,
        "backslashreplace" if unprintable else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Stdin(io.FileIO):
    """Says in words why nothing can be read."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise RequestError(_told("stdin", error)) from None

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise RequestError(_told("stdin", error)) from None


class _Output(io.FileIO):
    def _put(self, data: ReadableBuffer) -> int:
        """Write some of the data, and wait where the other side of a pipe asks for patience."""
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class _Stdout(_Output):
    """Raises :class:`OutputLost`, once: what is still in a buffer then has nowhere to go."""

    _lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self._lost:
            return memoryview(data).nbytes
        try:
            return self._put(data)
        except OSError as error:
            self._lost = True
            reason = "" if isinstance(error, BrokenPipeError) else _told("stdout", error)
            raise OutputLost(reason) from None


class _Stderr(_Output):
    """Never fails: what is beside the output is no reason to do without the output."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return self._put(data)
        except OSError:
            return memoryview(data).nbytes


def _told(name: str, error: OSError) -> str:
    return f"{name} is closed" if error.errno == errno.EBADF else f"{name}: {error.strerror}"

"""Guards for stdin, stdout and stderr that are closed, full, or a pipe without a reader."""

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

EXIT_BROKEN_PIPE: Final = 141
"""Exit code that a shell reports for a program killed by SIGPIPE (which Python ignores)."""

EXIT_OUTPUT_LOST: Final = 1


class OutputLost(Exception):
    """Stdout cannot be written. The message is empty if its reader has closed the pipe.

    Not a :class:`KinfolkError`: a command may handle those and go on, but not without stdout.
    """

    @property
    def exit_code(self) -> int:
        return EXIT_OUTPUT_LOST if str(self) else EXIT_BROKEN_PIPE


def guard_streams() -> None:
    """Replace the standard streams by guarded ones. Call it before the program opens any file.

    A closed stream gets a descriptor on which every operation fails. Otherwise the next opened file
    would get its number, and prints of libraries would end up in that file.
    """
    guards = (("stdin", 0, _Stdin), ("stdout", 1, _Stdout), ("stderr", 2, _Stderr))
    for name, number, guard in guards:
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # replaced by the caller, e.g. a test runner
        if stream is None:
            wrong_way = os.O_WRONLY if guard is _Stdin else os.O_RDONLY
            number = os.open(os.devnull, wrong_way)
        setattr(sys, name, _guarded(guard, number, stream))


def _guarded(
    guard: type[io.FileIO], number: int, stream: io.TextIOWrapper | None
) -> io.TextIOWrapper:
    """A text stream over a guarded descriptor, with the encoding and buffering of ``stream``."""
    mode = "r" if guard is _Stdin else "w"
    raw = guard(number, mode, closefd=False)
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    if stream is None:
        return io.TextIOWrapper(buffer, "utf-8", "backslashreplace")
    # File names may hold bytes that are not text: print them escaped instead of failing.
    unprintable = mode == "w" and stream.errors == "strict"
    return io.TextIOWrapper(
        buffer,
        stream.encoding,
        "backslashreplace" if unprintable else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Stdin(io.FileIO):
    """Stdin that raises :class:`RequestError` if it cannot be read."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise RequestError(_reason("stdin", error)) from None

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise RequestError(_reason("stdin", error)) from None


class _Output(io.FileIO):
    def _put(self, data: ReadableBuffer) -> int:
        """Write part of the data; waits while a non-blocking pipe is full."""
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class _Stdout(_Output):
    """Stdout that raises :class:`OutputLost` on the first failure and discards later writes."""

    _lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self._lost:
            return memoryview(data).nbytes
        try:
            return self._put(data)
        except OSError as error:
            self._lost = True
            reason = "" if isinstance(error, BrokenPipeError) else _reason("stdout", error)
            raise OutputLost(reason) from None


class _Stderr(_Output):
    """Stderr that ignores failures: messages must not prevent the output on stdout."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return self._put(data)
        except OSError:
            return memoryview(data).nbytes


def _reason(name: str, error: OSError) -> str:
    return f"{name} is closed" if error.errno == errno.EBADF else f"{name}: {error.strerror}"

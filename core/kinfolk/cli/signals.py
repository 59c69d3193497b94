"""SIGTERM and SIGHUP end a command like Ctrl-C does, so that temporary files, other processes and
what is kept on the disk are seen to. A second one does not wait."""

from __future__ import annotations

import os
import signal
from typing import Final, NoReturn

_NUMBERS: Final = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """One of the two came. What Ctrl-C only stops, such as an answer of a chat, this ends."""


_came: list[int] = []


def unwind_on_signals() -> None:
    """Raise :class:`Terminated` when one comes, unless nohup or the caller has other plans."""
    for number in _NUMBERS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _unwind)


def exit_if_one_came() -> None:
    """End the process as a shell reports it, without writing what waits: a pipe may be full."""
    if _came:
        os._exit(128 + _came[0])


def _unwind(number: int, frame: object) -> NoReturn:
    _came.append(number)
    for each in _NUMBERS:
        if signal.getsignal(each) is _unwind:
            signal.signal(each, signal.SIG_DFL)
    raise Terminated

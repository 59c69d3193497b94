"""Console output of commands: notes and progress bars on stderr, tables, JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOW_AFTER: Final = 0.5
"""Seconds before a progress bar appears."""


def on_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def note(message: str) -> None:
    """Print a line on stderr, above the progress bar if one is shown."""
    click.echo(message, file=sys.stderr)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, ensure_ascii=False, indent=2))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines of aligned columns, two spaces apart; the last column is not padded."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def size(nbytes: int) -> str:
    """Bytes in binary units: ``15.6 GiB``."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


class NoteHandler(logging.Handler):
    """A log handler that prints with :func:`note`."""

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record))


class ProgressBar:
    """A progress bar that is erased at the end; silent if stderr is not a terminal.

    Call it with the amount done, the total and a label. It appears after half a second, or with
    ``at_once`` immediately.
    """

    def __init__(self, title: str, *, at_once: bool = False):
        self._title = title
        self._at_once = at_once
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._visible = on_terminal()

    def __enter__(self) -> Self:
        if self._visible and self._at_once and self._open().console.is_dumb_terminal:
            note(self._title)  # a dumb terminal cannot erase a bar
        return self

    def __call__(self, done: int, total: int, what: str = "") -> None:
        early = self._bar is None and time.monotonic() - self._started < _SHOW_AFTER
        if not self._visible or early:
            return
        bar = self._bar or self._open()
        bar.update(bar.tasks[0].id, completed=done, total=total, what=what)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            Remaining(),
            TextColumn("{task.fields[what]}", style="dim"),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.add_task(self._title, total=None, what="")
        self._bar.start()
        return self._bar

"""Messages and progress bars beside the output."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from kinfolk.cli import console
from kinfolk.cli.console import ProgressBar, size, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def work(monkeypatch, stream, seconds):
    """Run a bar to its end on ``stream``; its clock advances by ``seconds`` at every call."""
    ticks = iter(range(1000))
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(console.time, "monotonic", lambda: next(ticks) * seconds)
    with ProgressBar("loading") as progress:
        for done in range(1, 5):
            progress(done, 4, f"part {done}")
    return stream.getvalue()


def test_a_long_step_on_a_terminal_shows_a_bar(monkeypatch):
    assert "loading" in work(monkeypatch, Terminal(), seconds=1)


def test_a_short_step_shows_nothing(monkeypatch):
    assert work(monkeypatch, Terminal(), seconds=0.01) == ""


def test_nobody_looking_nothing_is_shown(monkeypatch):
    assert work(monkeypatch, io.StringIO(), seconds=1) == ""


def test_a_step_that_is_sure_to_take_long_shows_at_once(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("loading model.gguf", at_once=True):
        assert "loading model.gguf" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K"), "nothing is left of it"


def test_a_terminal_that_takes_nothing_back_gets_a_line(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("loading model.gguf", at_once=True) as progress:
        progress(1, 2)
    assert stream.getvalue().strip() == "loading model.gguf"


def test_at_once_is_never_where_nobody_looks(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("loading", at_once=True) as progress:
        progress(1, 2)
    assert stream.getvalue() == ""


def test_log_lines_stand_above_a_bar(monkeypatch):
    """Written without regard to the bar, they would end up in its line."""
    stream = Terminal()
    handler = console.NoteHandler()
    record = logging.LogRecord("kinfolk", logging.WARNING, "", 0, "beware", (), None)
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("loading", at_once=True):
        handler.emit(record)
    (line,) = [line for line in stream.getvalue().split("\n") if "beware" in line]
    assert line.rpartition("\x1b[2K")[2] == "beware"


def test_columns_of_a_table_stand_below_one_another():
    assert table([("a", "1", "x y"), ("long", "22", "")]) == "a     1   x y\nlong  22"
    assert table([]) == ""


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (2**41, "2.0 TiB")],
)
def test_sizes_are_written_in_units_of_1024(nbytes, text):
    assert size(nbytes) == text

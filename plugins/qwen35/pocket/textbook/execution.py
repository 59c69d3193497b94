"""Runs small programs: documents of the textbook when they are written, answers that are judged.

Each runs with a limit of time, in a folder of its own, and what it prints is thrown away. Those of
a model have a process of their own, and a limit of memory.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

SECONDS = 5
MEMORY = 2**30
FILE = 2**20
RESTRICTED = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE}, {FILE}))
runpy.run_path("program.py", run_name="__main__")
"""


class TooLongError(Exception):
    """A program has used up its time."""


def problem(program: str) -> str | None:
    """What goes wrong when ``program`` runs in this process, or None. For programs of our own."""
    with tempfile.TemporaryDirectory() as folder, _inside(folder), _limited():
        silent = io.StringIO()
        try:
            with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
                exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"
    return None


def passes(program: str) -> bool:
    """Whether ``program`` ends well in a process of its own. For programs of a model."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(program, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", RESTRICTED],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=2 * SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

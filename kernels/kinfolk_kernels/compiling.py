"""Compiling kernels on a GPU's first start, most of the wait: side by side, and not in silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Final

_EVERY: Final = 5.0
"""Seconds between two lines, at least."""


class CompilationNotes:
    """Triton calls it after every kernel it has compiled or found compiled."""

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._clock = say, clock
        self._count = 0
        self._due = 0.0

    def __call__(self, *, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            return
        self._count += 1
        if self._count == 1:
            self._say("compiling kernels for this GPU, once: they are kept for the next start")
        elif self._clock() >= self._due:
            self._say(f"{self._count} kernels compiled")
        else:
            return
        self._due = self._clock() + _EVERY


def announce_compilations(say: Callable[[str], None]) -> None:
    """From now on, unless somebody else already listens or there is no Triton."""
    try:
        from triton import knobs
    except ImportError:
        return
    if knobs.compilation.listener is None:
        knobs.compilation.listener = CompilationNotes(say)


@contextmanager
def side_by_side() -> Iterator[None]:
    """Launches inside do not run. What they need is compiled by as many threads as there are cores,
    most of whose time is outside Python, and is on the device at the end."""
    from triton import AsyncCompileMode

    from kinfolk_kernels.launch import compiled_only

    with (
        ThreadPoolExecutor(os.cpu_count(), "kinfolk-compiler") as threads,
        AsyncCompileMode(threads),
    ):
        with compiled_only() as kernels:
            yield
        # By this thread alone: all launchers of Triton 3.6, which it has C compiled for, are one
        # module of Python's by name, and two threads that import it may get each other's.
        under_way = {made.future: made for made in kernels if hasattr(made, "future")}
        for future in as_completed(under_way):
            under_way[future].result().run  # noqa: B018 - a property that loads it

"""Compiles kernels in parallel on a GPU's first start, and reports the progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Final

_EVERY: Final = 5.0
"""Least seconds between two lines of progress."""


class CompilationNotes:
    """A hook that Triton calls after every kernel that it has compiled or loaded from its cache."""

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
    """Report compilations from now on, unless Triton is missing or its hook is taken."""
    try:
        from triton import knobs
    except ImportError:
        return
    if knobs.compilation.listener is None:
        knobs.compilation.listener = CompilationNotes(say)


@contextmanager
def side_by_side() -> Iterator[None]:
    """Context in which launches do not run. Their kernels are compiled by one thread for each core,
    mostly outside Python's lock, and are loaded on the device at the end."""
    from triton import AsyncCompileMode

    from kinfolk_kernels.launch import compiled_only

    with (
        ThreadPoolExecutor(os.cpu_count(), "kinfolk-compiler") as threads,
        AsyncCompileMode(threads),
    ):
        with compiled_only(threads) as kernels:
            yield
        # Loaded by this thread only: Triton 3.6 imports every compiled launcher under the same
        # module name, so two threads that import at once may get each other's launcher.
        under_way = {kernel.future: kernel for kernel in kernels if hasattr(kernel, "future")}
        for future in as_completed(under_way):
            under_way[future].result().run  # noqa: B018 - a property that loads it

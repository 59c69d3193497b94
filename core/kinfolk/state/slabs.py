"""Slabs of host memory, made one at a time.

Pinned ones are made ahead by a thread, as pages that are touched first and registered with the
driver then. Pinned memory that the driver allocates itself holds up every launch of the process for
26 ms per 64 MiB, from another thread too; registering a small slab holds up launches for
milliseconds (``benchmarks/pinning.py``).
"""

from __future__ import annotations

import _thread
import atexit
import logging
import mmap
import os
import time
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch

from kinfolk.errors import CapacityError
from kinfolk.page_lock import page_lock, page_unlock

log = logging.getLogger(__name__)

END_SECONDS: Final = 30.0
"""The longest wait at the end of the process, for a device that does not answer."""


class Slabs:
    """Slabs of ``nbytes`` bytes, uint8 [nbytes] each, for copies from and to ``device``."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._nbytes = nbytes
        self._made = 0
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[torch.Tensor]] = deque()
        self._registered: list[torch.Tensor] = []
        if device.type == "cuda":
            self._thread = ThreadPoolExecutor(1, "kinfolk-pinning")
            end = weakref.finalize(self, _release, self._thread, self._registered, device)
            end.atexit = False  # The process gives all memory back itself.

    def make_ahead(self, count: int) -> None:
        """Let the thread make slabs until ``count`` are ready; returns at once."""
        if self._thread is None:
            return
        while len(self._ahead) < count:
            self._ahead.append(self._thread.submit(_make_pinned, self._nbytes, self._registered))

    def take(self) -> torch.Tensor:
        """The next slab; waits until it is made. Raises :class:`CapacityError` if the host has no
        memory for it."""
        try:
            if self._thread is None:
                slab = _make(self._nbytes)
            else:
                self.make_ahead(1)
                slab = self._ahead.popleft().result()
        except (RuntimeError, OSError) as error:
            kind = "memory" if self._thread is None else "pinned memory"
            raise CapacityError(
                f"the host has no {self._nbytes} bytes more of {kind} after {self._made} times as "
                f"many: lower --cache-memory ({error})"
            ) from error
        self._made += 1
        return slab


def _make(nbytes: int) -> torch.Tensor:
    # It outlives the step that needs it, which may run in inference mode.
    with torch.inference_mode(False):
        return torch.empty(nbytes, dtype=torch.uint8)


def _make_pinned(nbytes: int, registered: list[torch.Tensor]) -> torch.Tensor:
    slab = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)
    slab.zero_()
    page_lock(slab)
    registered.append(slab)
    return slab


_releases: list[object] = []
"""One for each thread that gives slabs back."""

_kept: list[object] = []
"""Memory that could not be given back: the driver still knows it, so it must stay mapped."""

_ending = False
"""The interpreter ends: no thread may begin any more."""

os.register_at_fork(after_in_child=_releases.clear)


def _release(
    making: ThreadPoolExecutor, registered: list[torch.Tensor], device: torch.device
) -> None:
    """Give the slabs back, in a thread of its own.

    A garbage collection calls this in the middle of anything, also of ``submit`` and
    ``Thread.start``, which hold locks of the whole process. So it takes no lock, and begins its
    thread in the only way that takes none. If the process ends or has no thread left, it keeps the
    memory.
    """
    if _ending:
        _kept.append(registered)
        return
    release = object()
    _releases.append(release)
    try:
        _thread.start_new_thread(_run, (release, [making, registered, device]))
    except BaseException:
        _kept.append(registered)
        _releases.remove(release)
        raise


def _run(release: object, arguments: list[Any]) -> None:
    try:
        _unregister(*arguments)
    except Exception as error:
        _kept.append(arguments)
        log.warning("pinned memory is not given back: %s", error)
    else:
        arguments.clear()  # Tensors are freed before the interpreter may end.
    finally:
        _releases.remove(release)


def _unregister(
    making: ThreadPoolExecutor, registered: list[torch.Tensor], device: torch.device
) -> None:
    making.shutdown(cancel_futures=True)
    torch.cuda.synchronize(device)  # Copies may be under way.
    for slab in registered:
        page_unlock(slab)


@atexit.register
def _end() -> None:
    """If the interpreter ends while a thread is inside of a library, the process aborts."""
    global _ending
    _ending = True
    end = time.monotonic() + END_SECONDS
    while _releases and time.monotonic() < end:
        time.sleep(0.001)

"""The host arena: the homes of all experts, one mapping that a device reads by address."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable

import torch

from kinfolk.errors import CapacityError
from kinfolk.page_lock import forget_error, has_one_address, page_lock, page_unlock

_GIB = 2**30


class HostArena:
    """``nbytes`` bytes of host memory, in ranges for the layers of a model.

    It is one anonymous mapping. For a CUDA ``device`` the driver locks it in memory, once and as a
    whole: torch's allocator of pinned memory would round it up to a power of two. Memory that is
    locked is touched before, so that a host without enough of it says so here.
    Raises :class:`CapacityError` if the host or the driver refuses.
    """

    def __init__(
        self, nbytes: int, device: torch.device, lock: Callable[[torch.Tensor], None] | None = None
    ) -> None:
        self.nbytes = nbytes
        self._used = 0
        try:
            mapping = _map(max(1, nbytes))
        except (OSError, ValueError, OverflowError) as error:
            raise CapacityError(
                f"the host has no {nbytes / _GIB:.2f} GiB for the homes of experts ({error}): use "
                "--expert-budget all or a smaller quantisation"
            ) from error
        # Steps in inference mode read it, and the loader's threads write to it.
        with torch.inference_mode(False):
            self._bytes = torch.frombuffer(mapping, dtype=torch.uint8)
        locked: list[torch.device] = []
        self._end = weakref.finalize(self, _release, mapping, self._bytes, locked)
        self._end.atexit = False  # The process gives all memory back itself.
        if not nbytes or (lock is None and device.type != "cuda"):
            return
        try:
            if lock is not None:
                lock(self._bytes)
            else:
                lock_with_driver(self._bytes, device)
                locked.append(device)
        except (RuntimeError, OSError) as error:
            self.release()
            raise CapacityError(
                f"{nbytes / _GIB:.2f} GiB of experts in host memory cannot be page-locked "
                f"({error}): raise the limit (ulimit -l, --ulimit memlock=-1 of a container; WSL "
                "locks half of its memory= at most), or use --expert-budget all or a smaller "
                "quantisation"
            ) from error

    def take(self, count: int, record: int) -> torch.Tensor:
        """The next ``count`` records, uint8 [count, record]."""
        start, self._used = self._used, self._used + count * record
        if self._used > self.nbytes:
            raise CapacityError(
                f"experts need {self._used} bytes of host memory, {self.nbytes} were planned"
            )
        with torch.inference_mode(False):
            return self._bytes[start : self._used].view(count, record)

    def release(self) -> None:
        """Unlock the memory and give its pages back. What still refers to records reads zeros."""
        self._end()


def lock_with_driver(memory: torch.Tensor, device: torch.device) -> None:
    """Lock ``memory``, so that ``device`` reads it by address. Raises :class:`RuntimeError`."""
    memory[:: mmap.PAGESIZE].zero_()  # Every page is touched first.
    with torch.cuda.device(device):
        try:
            page_lock(memory)
        except RuntimeError:
            forget_error(device)
            raise
        if not has_one_address(memory):
            page_unlock(memory)
            raise RuntimeError("the device does not read it at the address that the host has")


def _map(nbytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, nbytes)
    # Pages of a private mapping can be given back while views keep the mapping alive.
    return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _release(mapping: mmap.mmap, memory: torch.Tensor, locked: list[torch.device]) -> None:
    for device in locked:
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # Steps may be under way.
            page_unlock(memory)
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)

"""Whether the host lets this process pin as much memory as state will need."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch

from kinfolk.engine.sizing import GIB
from kinfolk.errors import CapacityError
from kinfolk.page_lock import forget_error, page_lock, page_unlock
from kinfolk.state.host_rows import SLAB_BYTES


def lock_limit() -> int | None:
    """Bytes that this process may lock in memory (``RLIMIT_MEMLOCK``); ``None`` = any number, or
    the system has no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def refuse_unpinnable(nbytes: int, limit: int | None, pin: Callable[[int], None]) -> None:
    """Raise :class:`CapacityError` if ``nbytes`` of host memory cannot be pinned because of
    ``limit``. Many drivers do not heed it, so ``pin`` is asked to pin more, and to let it go."""
    if limit is None or nbytes <= limit:
        return
    try:
        pin(min(nbytes, limit + SLAB_BYTES))
    except (RuntimeError, OSError) as error:
        raise CapacityError(
            f"{nbytes / GIB:.2f} GiB of host memory are to be pinned, and this process may lock "
            f"{limit / GIB:.2f} GiB (RLIMIT_MEMLOCK = {limit} bytes; pinning more fails: {error}): "
            "raise the limit (ulimit -l, LimitMEMLOCK= of a service, --ulimit memlock=-1 of a "
            "container), or lower --kvflash-host, --cache-memory or --context; with experts in "
            "host memory, use --expert-budget all or a smaller quantisation"
        ) from error


def try_to_pin(nbytes: int) -> None:
    """Pin memory and let it go. Raises :class:`RuntimeError` or :class:`OSError` if the driver or
    the system refuses."""
    memory = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)
    memory.zero_()
    try:
        page_lock(memory)
    except RuntimeError:
        forget_error(torch.device("cuda"))
        raise
    page_unlock(memory)

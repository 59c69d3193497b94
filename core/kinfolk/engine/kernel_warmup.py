"""Steps that compile their kernels before they run, on all cores of the host.

A first step meets dozens of kernels that were never compiled, and would wait for one after the
other, many times as long as its own work takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from importlib.util import find_spec

import torch

from kinfolk.ops.binding import NotPrecompilableError, Ops

log = logging.getLogger(__name__)


class KernelWarmup:
    """Rehearses each kind of step once, on devices whose kernels are compiled."""

    def __init__(self, ops: Ops, device: torch.device) -> None:
        self._ops = ops
        self._needed = device.type == "cuda" and find_spec("triton") is not None
        self._done: set[Hashable] = set()

    def before(self, kind: Hashable, body: Callable[[], object]) -> None:
        """Compile what ``body`` launches, if no step of its ``kind`` was here before.

        ``body`` is run without its launches, on whatever memory holds where they would have written
        their results; it must not read these on the host, nor write to state but through ops.
        A failure is left to the step itself.
        """
        if not self._needed or kind in self._done:
            return
        self._done.add(kind)
        try:
            with self._ops.precompiling():
                body()
        except NotPrecompilableError as reason:
            log.info("kernels are compiled one after the other: %s", reason)
        except Exception:
            log.warning("kernel warmup of %s failed", kind, exc_info=True)

"""Kernel warmup: a step's kernels are compiled on all cores of the host before it runs.

A first step launches dozens of kernels that are not compiled. Compiling them one after the other
would take many times as long as the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from importlib.util import find_spec

import torch

from kinfolk.ops.binding import NotPrecompilableError, Ops

log = logging.getLogger(__name__)


class KernelWarmup:
    """Traces each kind of step once, on devices that need compiled kernels."""

    def __init__(self, ops: Ops, device: torch.device) -> None:
        self._ops = ops
        self._needed = device.type == "cuda" and find_spec("triton") is not None
        self._done: set[Hashable] = set()

    def before(self, kind: Hashable, body: Callable[[], object]) -> None:
        """Compile the kernels that ``body`` launches, unless its ``kind`` was compiled before.

        ``body`` is traced with launches suppressed, so its intermediate results are uninitialised
        memory: it must not read them on the host, and must change state through ops only.
        A failure is logged and otherwise ignored: the step itself will raise it.
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

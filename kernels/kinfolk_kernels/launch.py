"""A launch of a Triton kernel as a value, which can be run, or compiled ahead of time.

Compiled kernels are looked up here. Triton's own look-up takes as long as a small kernel runs, and
a prompt has thousands of launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, ValuesView
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk_kernels.dependent import overlaps

_asked_for: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar("kernels", default=None)
"""Inside ``compiled_only``: the kernels that compilers were asked for, and their results."""

_compilers: ContextVar[Executor | None] = ContextVar("compilers", default=None)


@contextmanager
def compiled_only(compilers: Executor | None = None) -> Iterator[ValuesView[Any]]:
    """Context in which launches of this thread compile their kernels and do not run. A result for a
    kernel that is compiled in another thread has a ``future``. ``compilers``: the threads for
    kernels that Triton does not compile."""
    asked_for: dict[tuple[Any, ...], Any] = {}
    before, threads_before = _asked_for.set(asked_for), _compilers.set(compilers)
    try:
        yield asked_for.values()
    finally:
        _asked_for.reset(before)
        _compilers.reset(threads_before)


def pending_kernels() -> dict[tuple[Any, ...], Any] | None:
    """Inside ``compiled_only``, what its launches have asked compilers for, by key; else None."""
    return _asked_for.get()


def begins_early(device: torch.device) -> bool:
    """Whether a launch on ``device`` may start before the launches before it have ended."""
    return overlaps(device)


def compilers_of() -> Executor | None:
    """The ``compilers`` of the ``compiled_only`` that this thread is in."""
    return _compilers.get()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its grid; ``arguments`` are tensors and numbers by name, ``constants`` are
    compiled in.

    A kernel with a constant ``PDL`` may start before the launch before it has ended, if the device
    supports it; ``run`` and ``compiled_in`` fill in ``PDL``, see ``dependent``.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 1
    fuse: bool = True
    """Whether products and sums may be fused with one rounding; Triton's default depends on its
    version."""

    registers: int | None = None
    """Most registers of a thread, so that more programs run at a time."""

    early: bool = True
    """Whether the launch may start early if its kernel supports it. False for programs that fill a
    device: started early, they would be distributed unevenly, wherever earlier programs ended."""

    @property
    def options(self) -> dict[str, Any]:
        most = {} if self.registers is None else {"maxnreg": self.registers}
        return {
            **most,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": self.fuse,
        }

    def compiled_in(self, overlap: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """All constants and options; ``overlap``: whether the device can start launches early."""
        if "PDL" not in self.kernel.arg_names:
            return dict(self.constants), self.options
        early = {"launch_pdl": True} if overlap and self.early else {}
        return {**self.constants, "PDL": overlap}, {**self.options, **early}

    def run(self) -> None:
        arguments, kernel = self.arguments, self.kernel
        device = next(x.device for x in arguments.values() if isinstance(x, torch.Tensor))
        overlap = overlaps(device)
        if not hasattr(kernel, "do_not_specialize"):
            # The kernel is interpreted.
            self._run_anew(overlap)
            return
        names, free, compiled = _COMPILED.get(id(kernel)) or _new(kernel)
        constants = self.constants
        values: list[Any] = []
        # The key: everything that compiled code may depend on.
        known = [device, overlap, self.warps, self.stages, self.fuse, self.registers, self.early]
        for name in names:
            if name in arguments:
                value = arguments[name]
                kind = type(value)
                if kind is int:
                    known.append(_NUMBER if name in free else _kind_of(value))
                    if not -(2**31) <= value < 2**31:
                        known.append(_WIDE)
                elif isinstance(value, torch.Tensor):
                    known.append(value.dtype)
                    # Triton accepts an address too, and need not ask the tensor for it.
                    value = value.data_ptr()
                    if value % 16:
                        known.append(_UNALIGNED)
                else:
                    known.append(kind)
            else:
                value = overlap if name == "PDL" else constants[name]
                known.append(value)
            values.append(value)
        key = tuple(known)
        asked_for = _asked_for.get()
        if asked_for is not None:
            if key not in compiled and (id(kernel), key) not in asked_for:
                in_code, options = self.compiled_in(overlap)
                compiled_kernel = kernel.warmup(grid=self.grid, **arguments, **in_code, **options)
                asked_for[id(kernel), key] = compiled_kernel
        elif key in compiled:
            x, y, z, *_ = *self.grid, 1, 1
            compiled[key][x, y, z](*values)
        else:
            compiled[key] = self._run_anew(overlap)

    def _run_anew(self, overlap: bool) -> Any:
        """Run by Triton's own launcher; returns the compiled kernel."""
        constants, options = self.compiled_in(overlap)
        return self.kernel[self.grid](**self.arguments, **constants, **options)


_NUMBER, _WIDE, _UNALIGNED = "a number", "of 64 bits", "no multiple of 16"


def _kind_of(number: int) -> str:
    """The property of an integer for which Triton specialises compiled code."""
    return "1" if number == 1 else _NUMBER if number % 16 else "a multiple of 16"


_Compiled = tuple[tuple[str, ...], frozenset[str], dict[tuple[Any, ...], Any]]
_COMPILED: dict[int, _Compiled] = {}
"""By id of the kernel, which lives as long as its module: its argument names in order, those that
it is not specialised for, and compiled kernels by key."""


def _new(kernel: Any) -> _Compiled:
    names, free = tuple(kernel.arg_names), frozenset(kernel.do_not_specialize or ())
    return _COMPILED.setdefault(id(kernel), (names, free, {}))

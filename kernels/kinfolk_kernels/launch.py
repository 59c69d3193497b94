"""A launch of a Triton kernel as a value: what is run here and compiled ahead elsewhere.

What a compiled kernel was compiled for is looked up here: Triton does so too, in a time in which a
GPU is done with a small kernel, and a prompt is some thousand launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk_kernels.dependent import overlaps


@dataclass(frozen=True, slots=True)
class Launch:
    """``arguments`` are tensors and numbers by name, ``constants`` are compiled in.

    A kernel with a constant ``PDL`` may begin before the launch before it has ended, where the
    device can do that; whoever runs or compiles the launch says so, see ``dependent``.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 1
    fuse: bool = True
    """Whether a product and a sum may be rounded once; versions of Triton differ in what they do
    when they are not told."""

    registers: int | None = None
    """The most that a thread may take, so that more programs run at a time."""

    early: bool = True
    """Whether it may begin early if its kernel can. Programs that fill a device by themselves would
    be placed unevenly, where those before them happen to have ended."""

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
        device = next(x.device for x in self.arguments.values() if isinstance(x, torch.Tensor))
        overlap = overlaps(device)
        constants, options = self.compiled_in(overlap)
        if not hasattr(self.kernel, "do_not_specialize"):
            # It is interpreted.
            self.kernel[self.grid](**self.arguments, **constants, **options)
            return
        values, known = self._values(constants)
        key = (device, *options.items(), *known)
        compiled = _COMPILED.setdefault(id(self.kernel), {})
        if key in compiled:
            x, y, z, *_ = *self.grid, 1, 1
            compiled[key][x, y, z](*values)
            return
        compiled[key] = self.kernel[self.grid](**self.arguments, **constants, **options)

    def _values(self, constants: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """All values in the kernel's order, and what of each its code may depend on."""
        values, known = [], []
        free = self.kernel.do_not_specialize or ()
        for name in self.kernel.arg_names:
            if name in self.arguments:
                value = self.arguments[name]
                known.append(_known(value, name in free))
            else:
                value = constants[name]
                known.append(value)
            values.append(value)
        return values, known


_COMPILED: dict[int, dict[tuple[Any, ...], Any]] = {}
"""Compiled kernels, by kernel, which live as long as their modules, and what they depend on."""


def _known(value: Any, free: bool) -> Any:
    """What Triton knows of an argument when it compiles: a pointer's type and whether it is a
    multiple of 16; a number's type and, unless it is ``free``, whether it is one or such a
    multiple."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        wide = not -(2**31) <= value < 2**31
        return (type(value), wide) if free else (type(value), wide, value == 1, value % 16 == 0)
    return type(value)

"""A launch of a Triton kernel as a value: what is run here and compiled ahead elsewhere."""

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
        constants, options = self.compiled_in(overlaps(self._device))
        self.kernel[self.grid](**self.arguments, **constants, **options)

    @property
    def _device(self) -> torch.device:
        return next(x.device for x in self.arguments.values() if isinstance(x, torch.Tensor))

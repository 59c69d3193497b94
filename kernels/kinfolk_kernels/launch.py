"""A launch of a Triton kernel as a value: what is run here and compiled ahead elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """``arguments`` are tensors and numbers by name, ``constants`` are compiled in."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 1
    fuse: bool = True
    """Whether a product and a sum may be rounded once; versions of Triton differ in what they do
    when they are not told."""

    pdl: bool = False
    """Whether it may start before the launch before it has ended: the kernel waits by itself."""

    @property
    def options(self) -> dict[str, Any]:
        early = {"launch_pdl": True} if self.pdl else {}
        return {
            **early,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": self.fuse,
        }

    def run(self) -> None:
        self.kernel[self.grid](**self.arguments, **self.constants, **self.options)

"""Layers whose branches are normalised before and after (Ding et al., 2021: sandwich norm)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.step import Mixer, Step

Branch = Callable[[torch.Tensor, Step], torch.Tensor]
"""What is added to the residual stream [R, width]; its norms are its own."""


class Sandwich:
    """after(function(before(x)))."""

    def __init__(
        self, before: RMSNorm, function: Callable[[torch.Tensor], torch.Tensor], after: RMSNorm
    ) -> None:
        self.before, self.function, self.after = before, function, after

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        return self.after(self.function(self.before(x)))


class SandwichLayer:
    """x + after(mixer(before(x))), then x + branch(x) for one branch after the other, and all of
    it times ``scale`` [1], if there is one."""

    def __init__(
        self,
        before: RMSNorm,
        mixer: Mixer,
        after: RMSNorm,
        branches: Sequence[Branch],
        scale: torch.Tensor | None = None,
    ) -> None:
        self.before, self.mixer, self.after = before, mixer, after
        self.branches = tuple(branches)
        self.scale = scale

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        mixed, trace = self.mixer(self.before(x), step)
        x = x + self.after(mixed)
        for branch in self.branches:
            x = x + branch(x, step)
        return x if self.scale is None else x * self.scale, trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)

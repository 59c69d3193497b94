"""Sandwich norm: layers that normalise branches before and after (Ding et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.nn.step import Mixer, Step


class ResidualBranch(Protocol):
    """A branch of the residual stream that includes its norms."""

    def __call__(self, stream: Residual, step: Step) -> Residual:
        """x + branch(x); the addition and the norm after the branch may be left pending."""
        ...


class Sandwich:
    """x + after(function(before(x)))."""

    def __init__(
        self, before: RMSNorm, function: Callable[[torch.Tensor], torch.Tensor], after: RMSNorm
    ) -> None:
        self.before, self.function, self.after = before, function, after

    def __call__(self, stream: Residual, step: Step) -> Residual:
        x, normed = stream.normed(self.before)
        return Residual(x, self.function(normed), self.after)


class SandwichLayer:
    """x + after(mixer(before(x))), then x + branch(x) for each branch in turn, then x * ``scale``
    [1] if it is given."""

    def __init__(
        self,
        before: RMSNorm,
        mixer: Mixer,
        after: RMSNorm,
        branches: Sequence[ResidualBranch],
        scale: torch.Tensor | None = None,
    ) -> None:
        self.before, self.mixer, self.after = before, mixer, after
        self.branches = tuple(branches)
        self.scale = scale

    def __call__(self, stream: Residual, step: Step) -> tuple[Residual, Any]:
        x, normed = stream.normed(self.before)
        mixed, trace = self.mixer(normed, step)
        stream = Residual(x, mixed, self.after)
        for branch in self.branches:
            stream = branch(stream, step)
        return replace(stream, factor=self.scale), trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)

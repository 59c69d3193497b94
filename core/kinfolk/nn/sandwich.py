"""Layers whose branches are normalised before and after (Ding et al., 2021: sandwich norm)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual, ResidualLayer
from kinfolk.nn.step import Mixer, Step

Branch = Callable[[torch.Tensor, Step], torch.Tensor]
"""What is added to the residual stream [R, width]; its norms are its own."""


class ResidualBranch(ABC):
    """A branch that can leave its addition, and a norm before that, to whoever reads the stream
    next."""

    @abstractmethod
    def extend(self, stream: Residual, step: Step) -> Residual:
        """x + branch(x)."""


class Sandwich(ResidualBranch):
    """after(function(before(x)))."""

    def __init__(
        self, before: RMSNorm, function: Callable[[torch.Tensor], torch.Tensor], after: RMSNorm
    ) -> None:
        self.before, self.function, self.after = before, function, after

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        return self.after(self.function(self.before(x)))

    def extend(self, stream: Residual, step: Step) -> Residual:
        x, normed = stream.normed(self.before)
        return Residual(x, self.function(normed), self.after)


class SandwichLayer(ResidualLayer):
    """x + after(mixer(before(x))), then x + branch(x) for one branch after the other, and all of
    it times ``scale`` [1], if there is one."""

    def __init__(
        self,
        before: RMSNorm,
        mixer: Mixer,
        after: RMSNorm,
        branches: Sequence[Branch | ResidualBranch],
        scale: torch.Tensor | None = None,
    ) -> None:
        self.before, self.mixer, self.after = before, mixer, after
        self.branches = tuple(branches)
        self.scale = scale

    def extend(self, stream: Residual, step: Step) -> tuple[Residual, Any]:
        x, normed = stream.normed(self.before)
        mixed, trace = self.mixer(normed, step)
        stream = Residual(x, mixed, self.after)
        for branch in self.branches:
            if isinstance(branch, ResidualBranch):
                stream = branch.extend(stream, step)
            else:
                x = stream.tensor()
                stream = Residual(x, branch(x, step))
        return replace(stream, factor=self.scale), trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)

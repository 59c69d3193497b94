"""The residual stream between layers: a sum whose last term may still be to be added.

Whoever norms the stream next adds it in the same launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.step import Step
from kinfolk_kernels.rms_norm.branch import Branch


@dataclass(frozen=True, slots=True)
class Residual:
    """(total + after(branch)) * factor, float32 [R, width]; only ``total`` where there is no
    ``branch``. ``after`` is the branch's own norm, ``factor`` [1]."""

    total: torch.Tensor
    branch: torch.Tensor | None = None
    after: RMSNorm | None = None
    factor: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """The stream itself."""
        if self.branch is None:
            return self.total
        branch = self.branch if self.after is None else self.after(self.branch)
        total = self.total + branch
        return total if self.factor is None else total * self.factor

    def normed(self, norm: RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream itself, and ``norm`` of it."""
        if self.branch is None:
            return self.total, norm(self.total)
        after = self.after
        weight, eps = (None, None) if after is None else (after.weight, after.eps)
        return norm.after_adding(self.total, Branch(self.branch, weight, eps, self.factor))


class ResidualLayer(ABC):
    """A layer that leaves its last sum to whoever reads the stream next."""

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        """[R, width] -> [R, width] and a trace."""
        stream, trace = self.extend(Residual(x), step)
        return stream.tensor(), trace

    @classmethod
    def is_extended(cls) -> bool:
        """Whether ``extend`` is all there is to the layer: a subclass may be called its own way."""
        return cls.__call__ is ResidualLayer.__call__

    @abstractmethod
    def extend(self, stream: Residual, step: Step) -> tuple[Residual, Any]:
        """The same on a stream whose last term may be still to be added."""

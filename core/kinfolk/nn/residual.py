"""The residual stream between layers: a sum whose last term may still be to be added.

Whoever norms the stream next adds it in the same launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk.nn.norm import NormGroup, RMSNorm
from kinfolk.nn.step import Step
from kinfolk_kernels.rms_norm.branch import Branch, NormedRows


@dataclass(frozen=True, slots=True)
class Normed:
    """norm(rows), rows [R, width], still to be computed."""

    rows: torch.Tensor
    norm: RMSNorm


@dataclass(frozen=True, slots=True)
class Residual:
    """(total + after(branch)) * factor, float32 [R, width]; only ``total`` where there is no
    ``branch``, which may be the sum of two that have norms of their own. ``after`` is the norm of
    the branch, ``factor`` [1]."""

    total: torch.Tensor
    branch: torch.Tensor | tuple[Normed, Normed] | None = None
    after: RMSNorm | None = None
    factor: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """The stream itself."""
        branch = self.branch
        if branch is None:
            return self.total
        if isinstance(branch, tuple):
            return branch[0].norm.add(self.total, self._pending())[0]
        if self.after is not None:
            return self.after.add(self.total, self._pending())[0]
        total = self.total + branch
        return total if self.factor is None else total * self.factor

    def normed(self, norms: RMSNorm | NormGroup) -> tuple[torch.Tensor, ...]:
        """The stream itself, and each of the norms of it."""
        if self.branch is not None:
            return norms.add_rms_norm(self.total, self._pending())
        normed = norms(self.total)
        return self.total, *(normed if isinstance(normed, tuple) else (normed,))

    def _pending(self) -> Branch:
        """The branch as an operand of the op that adds it."""
        branch, after = self.branch, self.after
        assert branch is not None
        rows = (_rows_of(branch[0]), _rows_of(branch[1])) if isinstance(branch, tuple) else branch
        weight, eps = (None, None) if after is None else (after.weight, after.eps)
        return Branch(rows, weight, eps, self.factor)


def _rows_of(part: Normed) -> NormedRows:
    return NormedRows(part.rows, part.norm.weight, part.norm.eps)


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

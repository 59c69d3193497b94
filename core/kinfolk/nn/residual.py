"""Deferred residual add: the next norm adds the pending branch in one fused kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.nn.norm import NormGroup, RMSNorm
from kinfolk_kernels.rms_norm.branch import Branch, NormedRows


@dataclass(frozen=True, slots=True)
class Normed:
    """The norm of ``rows`` [R, width], computed only when the branch is added."""

    rows: torch.Tensor
    norm: RMSNorm


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream: (total + after(branch)) * factor, float32 [R, width].

    ``branch`` is pending: :meth:`normed` and :meth:`tensor` add it. A pair of branches is summed,
    each after its own norm. ``after`` is the norm of a single branch, ``factor`` a tensor [1].
    Without a branch the stream is ``total``.
    """

    total: torch.Tensor
    branch: torch.Tensor | tuple[Normed, Normed] | None = None
    after: RMSNorm | None = None
    factor: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """The stream [R, width], with the pending branch added."""
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
        """The stream as :meth:`tensor` returns it, and its norms, in one fused kernel."""
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

"""The branch that is added to a residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NormedRows:
    """Rows [R, D] and the norm to apply to them; ``weight`` [D], ``None`` = 1."""

    rows: torch.Tensor
    weight: torch.Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows [R, D], or two parts that are normed and then added. With ``eps``, the branch is normed
    before it is added to the stream, with ``weight`` [D], ``None`` = 1. With ``factor`` [1], the
    sum of stream and branch is multiplied by it."""

    rows: torch.Tensor | tuple[NormedRows, NormedRows]
    weight: torch.Tensor | None = None
    eps: float | None = None
    factor: torch.Tensor | None = None

    @property
    def parts(self) -> tuple[NormedRows, ...]:
        """The parts to add; the rows of a single branch are one part, which is not normed here."""
        if isinstance(self.rows, tuple):
            return self.rows
        return (NormedRows(self.rows, None, 0.0),)

"""What is added to a residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NormedRows:
    """Rows [R, D] that are still to be normed, with ``weight`` [D] or ``None`` for one."""

    rows: torch.Tensor
    weight: torch.Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows [R, D], or the sum of two that are normed each; normed before if ``eps`` is given, with
    ``weight`` [D] or ``None`` for one. The sum of stream and branch is multiplied by ``factor``
    [1], if there is one."""

    rows: torch.Tensor | tuple[NormedRows, NormedRows]
    weight: torch.Tensor | None = None
    eps: float | None = None
    factor: torch.Tensor | None = None

    @property
    def parts(self) -> tuple[NormedRows, ...]:
        """What is added up; one by itself is taken as it is."""
        if isinstance(self.rows, tuple):
            return self.rows
        return (NormedRows(self.rows, None, 0.0),)

"""What is added to a residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows [R, D], normed before if ``eps`` is given, with ``weight`` [D] or ``None`` for one. The
    sum of stream and branch is multiplied by ``factor`` [1], if there is one."""

    rows: torch.Tensor
    weight: torch.Tensor | None = None
    eps: float | None = None
    factor: torch.Tensor | None = None

"""The norm of the heads of a projection."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """x / sqrt(mean(x^2) + eps) * weight over a head; ``weight`` [D], ``None`` = 1."""

    weight: torch.Tensor | None
    eps: float

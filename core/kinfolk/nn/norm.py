"""Root-mean-square normalisation with its weight."""

from __future__ import annotations

import torch

from kinfolk.nn.context import BuildContext


class RMSNorm:
    """x / rms(x) * w over the last dimension; ``weight`` ``None`` = 1."""

    def __init__(self, context: BuildContext, weight: torch.Tensor | None, eps: float) -> None:
        self.ops = context.ops
        self.dtype = context.dtype
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D] in the model's activation type."""
        return self.ops.rms_norm(x, self.weight, self.eps, self.dtype)

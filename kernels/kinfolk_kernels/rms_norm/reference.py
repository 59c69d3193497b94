"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """x [..., D] -> x / sqrt(mean(x^2) + eps) * weight, computed in float32, returned in ``dtype``.

    ``weight`` [D] or ``None`` for one.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(dtype)

"""Root-mean-square normalisation by torch's fused function."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """x [..., D] -> x / sqrt(mean(x^2) + eps) * weight, in float32, returned in ``dtype``."""
    return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(dtype)

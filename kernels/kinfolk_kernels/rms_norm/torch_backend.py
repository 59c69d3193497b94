"""Root-mean-square normalisation by torch's fused function."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.rms_norm.branch import Branch
from kinfolk_kernels.rms_norm.reference import plus_branch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """x [..., D] -> x / sqrt(mean(x^2) + eps) * weight, in float32, returned in ``dtype``."""
    return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(dtype)


def add_rms_norm(
    residual: torch.Tensor,
    branch: Branch,
    weights: Sequence[torch.Tensor | None],
    eps: float,
    dtypes: Sequence[torch.dtype],
) -> tuple[torch.Tensor, ...]:
    """See the reference."""
    total = plus_branch(residual, branch)
    norms = zip(weights, dtypes, strict=True)
    return total, *(rms_norm(total, weight, eps, dtype) for weight, dtype in norms)


def gated_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """See the reference."""
    normed = rms_norm(x, weight, eps, torch.float32).flatten(1)
    return (torch.nn.functional.silu(gate.float()) * normed).to(dtype)

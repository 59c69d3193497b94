"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.rms_norm.branch import Branch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """x [..., D] -> x / sqrt(mean(x^2) + eps) * weight, computed in float32, returned in ``dtype``.

    ``weight`` [D] or ``None`` for one.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(dtype)


def add_rms_norm(
    residual: torch.Tensor,
    branch: Branch,
    weights: Sequence[torch.Tensor | None],
    eps: float,
    dtypes: Sequence[torch.dtype],
) -> tuple[torch.Tensor, ...]:
    """residual float32 [R, D] + branch [R, D]: the sum, and its norm by each of the weights, which
    may be none, in the type of the same place."""
    total = plus_branch(residual, branch)
    norms = zip(weights, dtypes, strict=True)
    return total, *(rms_norm(total, weight, eps, dtype) for weight, dtype in norms)


def plus_branch(residual: torch.Tensor, branch: Branch) -> torch.Tensor:
    """The stream with what is added to it."""
    rows = branch.rows
    if isinstance(rows, tuple):
        first, second = (rms_norm(x.rows, x.weight, x.eps, torch.float32) for x in rows)
        rows = first + second
    if branch.eps is not None:
        rows = rms_norm(rows, branch.weight, branch.eps, torch.float32)
    total = residual + rows
    return total if branch.factor is None else total * branch.factor


def gated_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """silu(gate [R, H * D]) times the norm of each head of x [R, H, D]: [R, H * D] in ``dtype``."""
    normed = rms_norm(x, weight, eps, torch.float32).flatten(1)
    return (torch.nn.functional.silu(gate.float()) * normed).to(dtype)

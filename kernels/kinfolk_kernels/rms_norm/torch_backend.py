"""Root-mean-square normalisation by torch's fused function."""

from __future__ import annotations

import torch

from kinfolk_kernels.rms_norm.branch import Branch
from kinfolk_kernels.rms_norm.op import (
    AddRMSNormArguments,
    GatedRMSNormArguments,
    RMSNormArguments,
    plus_branch,
)


def rms_norm(arguments: RMSNormArguments, x: torch.Tensor) -> torch.Tensor:
    """See :class:`RMSNormArguments`."""
    return _normed(x, arguments.weight, arguments.eps, arguments.dtype)


def add_rms_norm(
    arguments: AddRMSNormArguments, residual: torch.Tensor, branch: Branch
) -> tuple[torch.Tensor, ...]:
    """See :class:`AddRMSNormArguments`."""
    total = plus_branch(residual, branch)
    norms = zip(arguments.weights, arguments.dtypes, strict=True)
    return total, *(_normed(total, weight, arguments.eps, dtype) for weight, dtype in norms)


def gated_rms_norm(
    arguments: GatedRMSNormArguments, x: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """See :class:`GatedRMSNormArguments`."""
    heads = _normed(x, arguments.weight, arguments.eps, torch.float32).flatten(1)
    return (torch.nn.functional.silu(gate.float()) * heads).to(arguments.dtype)


def _normed(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(dtype)

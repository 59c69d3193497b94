"""The references of root-mean-square normalisation, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kinfolk_kernels.rms_norm.branch import Branch

if TYPE_CHECKING:
    from kinfolk_kernels.rms_norm.op import (
        AddRMSNormArguments,
        GatedRMSNormArguments,
        RMSNormArguments,
    )


def rms_norm(arguments: RMSNormArguments, x: torch.Tensor) -> torch.Tensor:
    """See :class:`RMSNormArguments`."""
    return normed(x, arguments.weight, arguments.eps, arguments.dtype)


def normed(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """x [..., D] / sqrt(mean(x^2) + eps) * weight [D], in ``dtype``."""
    wide = x.float()
    unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (unit if weight is None else unit * weight).to(dtype)


def add_rms_norm(
    arguments: AddRMSNormArguments, residual: torch.Tensor, branch: Branch
) -> tuple[torch.Tensor, ...]:
    """See :class:`AddRMSNormArguments`."""
    total = plus_branch(residual, branch)
    norms = zip(arguments.weights, arguments.dtypes, strict=True)
    return total, *(normed(total, weight, arguments.eps, dtype) for weight, dtype in norms)


def plus_branch(residual: torch.Tensor, branch: Branch) -> torch.Tensor:
    """(residual + branch) * factor, float32 [R, D]."""
    rows = branch.rows
    if isinstance(rows, tuple):
        first, second = (normed(x.rows, x.weight, x.eps, torch.float32) for x in rows)
        rows = first + second
    if branch.eps is not None:
        rows = normed(rows, branch.weight, branch.eps, torch.float32)
    total = residual + rows
    return total if branch.factor is None else total * branch.factor


def gated_rms_norm(
    arguments: GatedRMSNormArguments, x: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """See :class:`GatedRMSNormArguments`."""
    heads = normed(x, arguments.weight, arguments.eps, torch.float32).flatten(1)
    return (torch.nn.functional.silu(gate.float()) * heads).to(arguments.dtype)

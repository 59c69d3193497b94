"""The ops ``rms_norm``, ``add_rms_norm`` and ``gated_rms_norm``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.rms_norm.branch import Branch


@dataclass(frozen=True, slots=True)
class RMSNormArguments:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019).

    ``weight`` float32 [D], ``None`` = 1. Operand: x [..., D], floating point. Result:
    [..., D] in ``dtype``, computed in float32.
    """

    weight: torch.Tensor | None
    eps: float
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class AddRMSNormArguments:
    """Adds a branch to the residual stream, and computes norms of the sum with each of ``weights``.

    ``weights`` are float32 [D] or ``None`` = 1; the tuple may be empty. Operands: residual float32
    [R, D] and a :class:`Branch`, whose rows are in ``branch_dtype`` or float32. Result: the sum
    float32 [R, D], then its norms [R, D], each in its entry of ``dtypes``.
    """

    weights: tuple[torch.Tensor | None, ...]
    eps: float
    dtypes: tuple[torch.dtype, ...]
    branch_dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class GatedRMSNormArguments:
    """silu(gate) times the norm of each head of x.

    ``weight`` float32 [D]. Operands: x [R, H, D] and gate [R, H * D], floating point. Result:
    [R, H * D] in ``dtype``, computed in float32.
    """

    weight: torch.Tensor
    eps: float
    dtype: torch.dtype
    device: torch.device


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


RMS_NORM = Op("rms_norm", RMSNormArguments, rms_norm, capturable=True)
ADD_RMS_NORM = Op("add_rms_norm", AddRMSNormArguments, add_rms_norm, capturable=True)
GATED_RMS_NORM = Op("gated_rms_norm", GatedRMSNormArguments, gated_rms_norm, capturable=True)

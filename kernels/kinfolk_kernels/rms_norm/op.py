"""The ops ``rms_norm``, ``add_rms_norm`` and ``gated_rms_norm``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.rms_norm.reference import add_rms_norm, gated_rms_norm, rms_norm


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


RMS_NORM = Op("rms_norm", RMSNormArguments, rms_norm, capturable=True)
ADD_RMS_NORM = Op("add_rms_norm", AddRMSNormArguments, add_rms_norm, capturable=True)
GATED_RMS_NORM = Op("gated_rms_norm", GatedRMSNormArguments, gated_rms_norm, capturable=True)

"""The op ``act_and_mul``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.act_and_mul.reference import Activation, act_and_mul
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class ActAndMulArguments:
    """activation(gate) * up: the elementwise part of SwiGLU (``silu``; Shazeer, 2020) and GeGLU
    (``gelu_tanh``; Hendrycks and Gimpel, 2016).

    Operands: gate and up [..., K] of one shape, floating point; ``dtype`` is that of ``up``.
    Result: [..., K] in ``dtype``, computed in float32.
    """

    activation: Activation
    dtype: torch.dtype
    device: torch.device


ACT_AND_MUL = Op("act_and_mul", ActAndMulArguments, act_and_mul, capturable=True)

"""The op ``act_and_mul``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

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


Activation = Literal["silu", "gelu_tanh"]


def act_and_mul(
    arguments: ActAndMulArguments, gate: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """See :class:`ActAndMulArguments`."""
    return product(arguments.activation, gate, up)


def product(activation: Activation, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """activation(gate) * up in the dtype of ``up``."""
    wide = gate.float()
    if activation == "silu":
        activated = torch.nn.functional.silu(wide)
    else:
        activated = torch.nn.functional.gelu(wide, approximate="tanh")
    return (activated * up.float()).to(up.dtype)


ACT_AND_MUL = Op("act_and_mul", ActAndMulArguments, act_and_mul, capturable=True)

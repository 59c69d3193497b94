"""The reference of ``act_and_mul``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.act_and_mul.op import ActAndMulArguments

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

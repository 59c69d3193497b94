"""Gated feed-forward networks."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.config import Activation
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear, Linears
from kinfolk_kernels.act_and_mul.op import ACT_AND_MUL, ActAndMulArguments


class GatedMLP:
    """W_down (act(W_gate x) * W_up x): SwiGLU with ``silu``, GeGLU with ``gelu_tanh``."""

    def __init__(
        self, context: BuildContext, gate: Any, up: Any, down: Any, activation: Activation = "silu"
    ) -> None:
        self.inputs = Linears(context, (gate, up))
        self.down = Linear(context, down)
        arguments = ActAndMulArguments(activation, context.dtype, context.device)
        self.act_and_mul = context.ops.bind(ACT_AND_MUL, arguments)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, width] -> [R, width]."""
        gate, up = self.inputs(x)
        return self.down(self.act_and_mul(gate, up))

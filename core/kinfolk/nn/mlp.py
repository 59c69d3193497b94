"""Feed-forward blocks."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.config import Activation
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear, Linears


class GatedMLP:
    """W_down (act(W_gate x) * W_up x): SwiGLU with ``silu``, GeGLU with ``gelu_tanh``."""

    def __init__(
        self, context: BuildContext, gate: Any, up: Any, down: Any, activation: Activation = "silu"
    ) -> None:
        self.inputs = Linears(context.ops, (gate, up))
        self.down = Linear(context.ops, down)
        ops = context.ops
        self.multiply = ops.silu_mul if activation == "silu" else ops.gelu_mul

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, width] -> [R, width]."""
        gate, up = self.inputs(x)
        return self.down(self.multiply(gate, up))

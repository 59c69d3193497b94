"""Feed-forward blocks."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.config import Activation
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear


class GatedMLP:
    """W_down (act(W_gate x) * W_up x): SwiGLU with ``silu``, GeGLU with ``gelu_tanh``."""

    def __init__(
        self, context: BuildContext, gate: Any, up: Any, down: Any, activation: Activation = "silu"
    ) -> None:
        self.gate, self.up = Linear(context.ops, gate), Linear(context.ops, up)
        self.down = Linear(context.ops, down)
        ops = context.ops
        self.multiply = ops.silu_mul if activation == "silu" else ops.gelu_mul

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, width] -> [R, width]."""
        return self.down(self.multiply(self.gate(x), self.up(x)))

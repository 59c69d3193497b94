"""Feed-forward blocks."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear


class SwiGLU:
    """W_down (silu(W_gate x) * W_up x)."""

    def __init__(self, context: BuildContext, gate: Any, up: Any, down: Any) -> None:
        self.ops = context.ops
        self.gate, self.up = Linear(context.ops, gate), Linear(context.ops, up)
        self.down = Linear(context.ops, down)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, width] -> [R, width]."""
        return self.down(self.ops.silu_mul(self.gate(x), self.up(x)))

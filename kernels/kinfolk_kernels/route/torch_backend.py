"""The choice of experts with the vendor's product."""

from __future__ import annotations

import torch

from kinfolk_kernels.linear.torch_backend import product as linear
from kinfolk_kernels.route.reference import Score, choice


def route(
    x: torch.Tensor,
    weight: torch.Tensor,
    score: Score,
    top_k: int,
    bias: torch.Tensor | None,
    scale: float,
    expert_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the reference."""
    return choice(linear(x.float(), weight), score, top_k, bias, scale, expert_scale)

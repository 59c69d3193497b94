"""The feed-forward network of the block for multi-token prediction, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kinfolk.train.mtp.feed_forward import gated_mlp, mixture
from kinfolk_qwen35moe.config import Qwen35MoeConfig


def feed_forward(
    config: Qwen35MoeConfig, weight: Callable[[str], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """[n, width] -> [n, width]: the routed experts, and the shared one times its gate."""
    routed = mixture(weight, x, top_k=config.top_k, scale=config.expert_scale)
    gate = (x @ weight("ffn_gate_inp_shexp").view(-1, 1)).sigmoid()
    return routed + gate * gated_mlp(config, weight, x, "_shexp")

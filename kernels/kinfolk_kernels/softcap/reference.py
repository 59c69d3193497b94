"""Logits bent to stay between two bounds (Bello et al., 2016)."""

from __future__ import annotations

import torch


def softcap(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """logits float32 [R, V] -> cap * tanh(logits / cap)."""
    return (logits / cap).tanh() * cap

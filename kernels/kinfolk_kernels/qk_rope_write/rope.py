"""Rotary position embedding on the leading dimensions, half-split pairs (Su et al., 2021)."""

from __future__ import annotations

import torch


def rope(
    x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Rotate the pairs (i, i + n) for i < n; dimensions from 2n on are not changed.

    x [R, heads, D], positions [R], cos and sin float32 [context, n] -> shape and dtype of ``x``.
    """
    n = cos.shape[-1]
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    first, second = x[..., :n].float(), x[..., n : 2 * n].float()
    turned = torch.cat([first * c - second * s, second * c + first * s], -1).to(x.dtype)
    return torch.cat([turned, x[..., 2 * n :]], -1)

"""Which experts a row goes to, and with what weight."""

from __future__ import annotations

from typing import Literal

import torch

Score = Literal["softmax", "sigmoid"]


def route(
    x: torch.Tensor,
    weight: torch.Tensor,
    score: Score,
    top_k: int,
    bias: torch.Tensor | None,
    scale: float,
    expert_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [R, W] -> expert ids int64 [R, K], best first, and weights float32 [R, K]: ``choice`` by
    the products with ``weight`` float32 [E, W], in float32 whatever the type of x."""
    return choice(x.float() @ weight.T, score, top_k, bias, scale, expert_scale)


def choice(
    logits: torch.Tensor,
    score: Score,
    top_k: int,
    bias: torch.Tensor | None,
    scale: float,
    expert_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [R, E] -> expert ids int64 [R, K], best first, and weights float32 [R, K].

    Scores are the softmax over all experts or their sigmoids. The K experts with the largest
    score + ``bias`` [E] are chosen, the lowest id of equals; their weights are the scores without
    the bias, divided by their sum, times ``scale``, times ``expert_scale`` [E] of each.
    """
    scores = logits.softmax(1) if score == "softmax" else logits.sigmoid()
    chosen_by = scores if bias is None else scores + bias
    ids = chosen_by.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(1, keepdim=True) * scale
    return ids, weights if expert_scale is None else weights * expert_scale[ids]

"""The expert that every row goes to, added to those that were chosen."""

from __future__ import annotations

import torch


def add_shared_expert(
    routed: torch.Tensor, shared: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None
) -> torch.Tensor:
    """routed float32, shared and x [R, W], gate float32 [W] -> float32 [R, W].

    routed + shared, the latter times the sigmoid of the product of ``gate`` with the row of ``x``
    if there is a gate.
    """
    added = shared.float()
    if gate is not None:
        added = added * (x.float() * gate).sum(1, keepdim=True).sigmoid()
    return routed + added

"""What the rows of a DFlash drafter's block see of the context and of each other."""

from __future__ import annotations

import torch


def context_mask(
    anchors: torch.Tensor, block: int, length: int, window: int | None
) -> torch.Tensor:
    """bool [A, B, length]: positions of the context that a row sees.

    The anchor's own features are not known when it is drafted from, so they are not visible.
    """
    place = torch.arange(length, device=anchors.device)
    seen = (place < anchors[:, None, None]).expand(-1, block, -1)
    if window is not None:
        row = anchors[:, None] + torch.arange(block, device=anchors.device)
        seen = seen & (place > row[..., None] - window)
    return seen


def block_mask(block: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [B, B]: rows of its own block that a row sees; windowed layers are causal."""
    offset = torch.arange(block, device=device)
    if window is None:
        return torch.ones(block, block, dtype=torch.bool, device=device)
    return offset[None] <= offset[:, None]

"""The reference of ``accept_drafts``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.accept_drafts.op import AcceptDraftsArguments

NO_ROW = -2
"""Parent of a padding row."""


def accept_drafts(
    arguments: AcceptDraftsArguments,
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    budget: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`AcceptDraftsArguments`.

    A row has at most one child that is right. So the rows right all the way up are found by
    doubling, in log2 T rounds, and their depths with them.
    """
    sequences, width = tokens.shape
    n_keep = torch.ones(sequences, dtype=torch.int64, device=chosen.device)
    if width == 1:
        return torch.zeros_like(tokens), n_keep, chosen[:, 0]
    row = torch.arange(width, device=chosen.device)
    root = row == 0
    above = torch.where(root | (parents < 0), 0, parents)
    wanted = (parents >= 0) & (tokens == chosen.gather(1, above)) & ~root
    siblings = parents[:, :, None] == parents[:, None, :]
    earlier = (siblings & wanted[:, None, :] & (row[None, :] < row[:, None])).any(2)
    right = (wanted & ~earlier) | root
    depth = (~root).long().expand(sequences, width)
    for _ in range((width - 1).bit_length()):
        right = right & right.gather(1, above)
        depth = depth + depth.gather(1, above)
        above = above.gather(1, above)
    kept = right & ((depth < budget[:, None]) | root)
    n_keep = kept.sum(1)
    # Rows that are not kept are put behind the end.
    path = torch.full((sequences, width + 1), -1, device=chosen.device)
    path = path.scatter(1, torch.where(kept, depth, width), row.expand(sequences, width))[:, :width]
    last = path.gather(1, n_keep[:, None] - 1)
    return path.contiguous(), n_keep, chosen.gather(1, last)[:, 0]

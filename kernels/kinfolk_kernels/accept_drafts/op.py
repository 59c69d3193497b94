"""The op ``accept_drafts``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class AcceptDraftsArguments:
    """Finds the path through drafts on which every token is the choice of the row before it.

    Operands, for L sequences of at most T rows, contiguous int64: ``chosen`` [L, T], the token that
    each row chose; ``tokens`` [L, T], the pending token and then drafts; ``parents`` [L, T], index
    in the sequence of each row's predecessor, -1 for the first and ``NO_ROW`` for padding;
    ``budget`` [L]. From the first row the path goes to the first child that has the chosen token,
    up to ``budget`` rows but at least one. Results: path [L, T], padded with -1; its length [L];
    the token that its last row chose [L].
    """

    device: torch.device


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

    A row has at most one matching child. So the rows whose whole path matches, and their depths,
    are found by pointer doubling in log2 T rounds.
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
    # Rows that are not kept go to an extra last column, which is dropped.
    path = torch.full((sequences, width + 1), -1, device=chosen.device)
    path = path.scatter(1, torch.where(kept, depth, width), row.expand(sequences, width))[:, :width]
    last = path.gather(1, n_keep[:, None] - 1)
    return path.contiguous(), n_keep, chosen.gather(1, last)[:, 0]


ACCEPT_DRAFTS = Op("accept_drafts", AcceptDraftsArguments, accept_drafts, capturable=True)

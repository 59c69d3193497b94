"""Which drafted rows are kept.

Every row is sampled as if nothing had been drafted; a drafted token is kept when it equals what
its parent's row chose. So the output is a draw from the model's own distribution with any drafts,
and the same draw as without them, because a row's random number depends on its position alone.

L lanes, one a sampled sequence, of at most T rows; a plain decode step has T = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kinfolk.hookspecs import hookimpl
from kinfolk.spec.sampling import RowSampling, sample_checked

NO_ROW = -2
"""Parent of padding in a lane."""


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """logits float32 [n, V]; rows int64 [L, T]: the logits of each row of a lane, -1 = padding."""

    logits: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens int64 [L, T]: the pending token, then drafts; parents int64 [L, T]: index in the lane
    of each row's predecessor, -1 for the first, -2 for padding; budget int64 [L]: most rows that
    may be kept."""

    tokens: torch.Tensor
    parents: torch.Tensor
    budget: torch.Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """path int64 [L, T]: kept rows of each lane in order, padded with -1; n_keep int64 [L], at
    least 1; next int64 [L]: the token chosen at the last kept row. A lane emits the tokens of
    path[1:] and then ``next``. ``finite`` bool [n]: whether each row of logits is, if whoever
    answers has found out."""

    path: torch.Tensor
    n_keep: torch.Tensor
    next: torch.Tensor
    finite: torch.Tensor | None = None


def verify(step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
    """Sample every row and walk each lane from its root along equal tokens."""
    tokens, finite = sample_checked(step.logits, sampling)
    return replace(walk(tokens[step.rows.clamp_min(0)], draft), finite=finite)


def walk(chosen: torch.Tensor, draft: Draft) -> Kept:
    """chosen int64 [L, T]: the token that each row wants next.

    A row has at most one child that is right: the first with the token it wants. So the rows right
    all the way up are found by doubling, in log2 T rounds, and their depths with them.
    """
    lanes, width = draft.tokens.shape
    n_keep = torch.ones(lanes, dtype=torch.int64, device=chosen.device)
    if width == 1:
        return Kept(torch.zeros_like(draft.tokens), n_keep, chosen[:, 0])
    row = torch.arange(width, device=chosen.device)
    root = row == 0
    above = torch.where(root | (draft.parents < 0), 0, draft.parents)
    wanted = (draft.parents >= 0) & (draft.tokens == chosen.gather(1, above)) & ~root
    siblings = draft.parents[:, :, None] == draft.parents[:, None, :]
    earlier = (siblings & wanted[:, None, :] & (row[None, :] < row[:, None])).any(2)
    right = (wanted & ~earlier) | root
    depth = (~root).long().expand(lanes, width)
    for _ in range((width - 1).bit_length()):
        right = right & right.gather(1, above)
        depth = depth + depth.gather(1, above)
        above = above.gather(1, above)
    kept = right & ((depth < draft.budget[:, None]) | root)
    n_keep = kept.sum(1)
    # Rows that are not kept are put behind the end.
    path = torch.full((lanes, width + 1), -1, device=chosen.device)
    path = path.scatter(1, torch.where(kept, depth, width), row.expand(lanes, width))[:, :width]
    last = path.gather(1, n_keep[:, None] - 1)
    return Kept(path.contiguous(), n_keep, chosen.gather(1, last)[:, 0])


class DefaultVerify:
    """The core's answer to the hook ``verify``."""

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        return verify(step, draft, sampling)

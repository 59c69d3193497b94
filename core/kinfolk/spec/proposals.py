"""Proposals on the device: what was drafted for each slot, until the next step verifies it.

The host knows how many rows it lays out for a slot, and the device fills them. What is proposed for
a slot is valid for the sequence that it was proposed for only; the scheduler keeps track of that.
"""

from __future__ import annotations

import torch

from kinfolk.model_api import StepBatch
from kinfolk.spec.trees import Trees
from kinfolk.spec.verify import NO_ROW
from kinfolk.types import NO_PARENT


class ProposalStore:
    """For each of S slots, int64 tensors:

    pending        [S]      the last chosen token, which no state holds yet
    length         [S]      committed positions
    tokens         [S, N]   what is proposed to follow: token i is that of row i + 1
    parents        [S, N]   rows that these follow, as :mod:`kinfolk.spec.trees` says
    depth, path    [S, N]   tokens up to each one, itself included, and bits of the rows on its path
    """

    def __init__(self, slots: int, nodes: int, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self.pending = torch.zeros(slots, dtype=torch.int64, device=device)
        self.length = torch.zeros_like(self.pending)
        self.tokens = torch.zeros(slots, nodes, dtype=torch.int64, device=device)
        self.parents = torch.full_like(self.tokens, NO_ROW)
        self.depth, self.path = torch.zeros_like(self.tokens), torch.zeros_like(self.tokens)

    def note(self, slots: torch.Tensor, pending: torch.Tensor, length: torch.Tensor) -> None:
        """The slots int64 [L] have these tokens pending behind ``length`` positions."""
        self.pending[slots] = pending
        self.length[slots] = length

    def put(self, slots: torch.Tensor, trees: Trees) -> None:
        """Store what is proposed for slots int64 [L]. A token that does not exist ends its path."""
        tokens, parents, _ = trees
        exists = (tokens >= 0) & (tokens < self._vocabulary)
        parents = torch.where(exists, parents, NO_ROW)
        self.tokens[slots], self.parents[slots] = torch.where(exists, tokens, 0), parents
        self.depth[slots], self.path[slots] = _paths(parents)

    def place(self, batch: StepBatch) -> None:
        """Fill the drafted rows of a step, behind the first of each sequence, in place: tokens and,
        in trees, positions, parents and paths.

        A row for which nothing is proposed gets no parent, so that it cannot be kept.
        """
        sequence = batch.sequence_of_row
        first, count, slot, drafted = batch.layout.spans.long()[sequence].unbind(1)
        node = torch.arange(batch.rows, device=first.device) - first - 1
        own = (drafted != 0) & (node >= 0) & (node < count - 1)
        node = node.clamp(0, self.tokens.shape[1] - 1)
        parent = self.parents[slot, node]
        there = parent >= 0
        values = [
            (batch.tokens, self.tokens[slot, node]),
            (batch.parent_row, torch.where(there, first + parent, NO_PARENT)),
        ]
        if batch.layout.traits.trees:
            path = self.path[slot, node]
            values += [
                (batch.positions, batch.context_len[sequence] + self.depth[slot, node]),
                (batch.ancestors, torch.where(batch.arena_row >= 0, path, 0)),
                (batch.layout.path, path),
            ]
        for target, value in values:
            target.copy_(torch.where(own, value, target))


def _paths(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Depths and paths int64 [L, N] of nodes with these parents; of what is no node, 0 and itself
    alone."""
    up = torch.nn.functional.pad(parents, (1, 0), value=NO_PARENT)
    place = torch.arange(up.shape[1], device=up.device).expand_as(up)
    depth, path = (up >= 0).long(), torch.ones_like(up) << place
    # Doubling: after n rounds a path holds 2^n ancestors and ``up`` is the next one.
    for _ in range((up.shape[1] - 1).bit_length()):
        at = up.clamp_min(0)
        depth = depth + torch.where(up >= 0, depth.gather(1, at), 0)
        path = path | torch.where(up >= 0, path.gather(1, at), 0)
        up = torch.where(up >= 0, up.gather(1, at), NO_PARENT)
    return depth[:, 1:], path[:, 1:]

"""Proposals on the device: what was drafted for each slot, until the next step verifies it.

The host knows how many rows it lays out for a slot, and the device fills them. What is proposed for
a slot is valid for the sequence that it was proposed for only; the scheduler keeps track of that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kinfolk.model_api import StepBatch
from kinfolk.spec.trees import Trees
from kinfolk.spec.verify import NO_ROW
from kinfolk_kernels.place_drafts.op import DraftedRows, StoredDrafts

PlaceDrafts = Callable[[StoredDrafts, torch.Tensor, torch.Tensor, torch.Tensor, DraftedRows], None]
"""The op ``place_drafts``, bound."""


class ProposalStore:
    """For each of S slots: ``drafts``, the pending token and what is proposed to follow it,
    ``length`` int64 [S], its committed positions, and ``confidence`` float32 [S, chain], the
    chances of the paths of a proposed chain by the drafter."""

    def __init__(
        self,
        slots: int,
        nodes: int,
        place_drafts: PlaceDrafts,
        device: torch.device,
        *,
        chain: int = 0,
    ) -> None:
        self.confidence = torch.zeros(slots, chain, device=device)
        self.length = torch.zeros(slots, dtype=torch.int64, device=device)
        tokens = torch.zeros(slots, nodes, dtype=torch.int64, device=device)
        self.drafts = StoredDrafts(
            pending=torch.zeros_like(self.length),
            tokens=tokens,
            parents=torch.full_like(tokens, NO_ROW),
            counts=torch.zeros_like(self.length),
        )
        self._place_drafts = place_drafts

    def note(self, slots: torch.Tensor, pending: torch.Tensor, length: torch.Tensor) -> None:
        """The slots int64 [L] have these tokens pending behind ``length`` positions."""
        self.drafts.pending[slots] = pending
        self.length[slots] = length

    def put(self, slots: torch.Tensor, trees: Trees) -> None:
        """Store what is proposed for slots int64 [L]."""
        drafts = self.drafts
        drafts.tokens[slots], drafts.parents[slots], drafts.counts[slots] = trees

    def place(self, batch: StepBatch) -> None:
        """Fill the drafted rows of a step in place, before its first matrix. A row for which
        nothing is proposed cannot be kept."""
        rows = DraftedRows(
            tokens=batch.tokens,
            positions=batch.positions,
            parent_row=batch.parent_row,
            limit=batch.limit,
            ancestors=batch.ancestors,
            arena_row=batch.arena_row,
            path=batch.layout.path,
        )
        spans = batch.layout.spans
        self._place_drafts(self.drafts, spans, batch.context_len, batch.arena_start, rows)

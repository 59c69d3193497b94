"""Penalty state: counts of each slot's tokens on the device, so that captured steps can penalise.

A row of counts and one of bias for every slot of the state, filled when a request first uses the
slot; from then on a step adds the tokens that it emits. A drafted row also counts the drafts on its
own path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kinfolk.model_api import StepBatch
from kinfolk.sched.request import Sampling
from kinfolk.spec.sampling import edited
from kinfolk.verify_api import RowSampling


class PenaltyState:
    """Counts and bias [slots, V]. The request in a slot is identified by its count of output
    tokens, one object as long as it lives."""

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        shape = (slots, vocabulary)
        # Twice the number of times that a token was emitted, and one if the prompt has it.
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._bias = torch.zeros(shape, device=device)
        self._holders: list[object] = [None] * slots

    def enter(
        self, slot: int, sampling: Sampling, prompt: frozenset[int], output: Mapping[int, int]
    ) -> None:
        """Fill a slot with the bias and counts of a request, unless it holds them. ``prompt``
        holds the ids of the prompt, ``output`` counts emitted tokens."""
        if self._holders[slot] is output:
            return
        # A preempted request may come back to a slot that it had, with counts of that time.
        self._holders = [None if holder is output else holder for holder in self._holders]
        self._holders[slot] = None
        counts, bias = self._counts[slot], self._bias[slot]
        counts.zero_()
        bias.zero_()
        occurred = dict.fromkeys(prompt, 1)
        for token, count in output.items():
            occurred[token] = occurred.get(token, 0) + 2 * count
        _put(counts, occurred)
        _put(bias, dict(sampling.logit_bias))
        self._holders[slot] = output

    def forget(self) -> None:
        """Mark all slots as stale, after a step has failed."""
        self._holders = [None] * len(self._holders)

    def edits(
        self, batch: StepBatch, sampled_slots: torch.Tensor, rows: int | None = None
    ) -> SlotEdits:
        """Edits of the logits of a step, of its first ``rows`` rows with logits, by default all.
        ``sampled_slots`` int64 [S]: slots of its sampled sequences."""
        logit_rows = batch.logit_rows[:rows]
        sequence = batch.sequence_of_row[logit_rows]
        slots = batch.slot_of_sequence[sequence]
        width = batch.layout.traits.draft_rows
        if width < 2:
            return SlotEdits(self._counts, self._bias, slots, sampled_slots)
        # Row 0 of a drafted sequence is the pending token, which its slot has counted.
        place = torch.arange(1, width, device=slots.device)
        first = batch.layout.spans[:, 0][sequence].long()
        row = (first[:, None] + place).clamp_max(batch.tokens.shape[0] - 1)
        on_path = (batch.layout.path[logit_rows][:, None] >> place) & 1
        return SlotEdits(
            self._counts, self._bias, slots, sampled_slots, batch.tokens[row], on_path.int()
        )


@dataclass(frozen=True, slots=True)
class SlotEdits:
    """Penalties and bias on logits [n, V], by the tokens counted in ``slots`` [n].

    ``drafts`` int64 [n, T]: drafted tokens of each row's sequence, and ``on_path`` int32 [n, T]: 1
    for those before the row. ``sampled_slots`` int64 [S] are those that :meth:`note` counts in.
    """

    counts: torch.Tensor
    bias: torch.Tensor
    slots: torch.Tensor
    sampled_slots: torch.Tensor
    drafts: torch.Tensor | None = None
    on_path: torch.Tensor | None = None

    def apply(self, logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
        """The changed logits, a copy."""
        occurred = self.counts.index_select(0, self.slots)
        if self.drafts is not None and self.on_path is not None:
            occurred.scatter_add_(1, self.drafts, 2 * self.on_path)
        return edited(
            logits,
            occurred > 0,
            (occurred >> 1).float(),
            self.bias.index_select(0, self.slots),
            rows.repetition[:, None],
            rows.presence[:, None],
            rows.frequency[:, None],
        )

    def note(self, emitted: torch.Tensor) -> None:
        """Count the tokens that each sampled sequence emits, int64 [S, T], padded with -1."""
        size = self.counts.shape[1]
        place = self.sampled_slots[:, None] * size + emitted.clamp_min(0)
        twice = 2 * (emitted >= 0).int()
        self.counts.view(-1).scatter_add_(0, place.flatten(), twice.flatten())


def _put(row: torch.Tensor, values: Mapping[int, float]) -> None:
    if values:
        place = torch.tensor(list(values), dtype=torch.int64)
        row[place.to(row.device)] = torch.tensor(list(values.values()), dtype=row.dtype).to(
            row.device
        )

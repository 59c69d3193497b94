"""Penalty state: counts of each slot's tokens on the device, so that captured steps can penalise.

A row of counts and one of bias for every slot of the state, filled when a request first uses the
slot; from then on a step adds the tokens that it chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from kinfolk.spec.sampling import RowContext, edited
from kinfolk.verify_api import RowSampling


class PenaltyState:
    """Counts and bias [slots, V]. The request in a slot is identified by its
    ``RowContext.output``; a request keeps its slot until it ends."""

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        shape = (slots, vocabulary)
        # Twice the number of times that a token was emitted, and one if the prompt has it.
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._bias = torch.zeros(shape, device=device)
        self._holders: list[object] = [None] * slots

    def enter(self, slot: int, row: RowContext) -> None:
        """Fill a slot with the counts and bias of ``row``'s request, unless it holds them."""
        if self._holders[slot] is row.output and row.output is not None:
            return
        self._holders[slot] = None
        counts, bias = self._counts[slot], self._bias[slot]
        counts.zero_()
        bias.zero_()
        occurred = dict.fromkeys(row.prompt, 1)
        for token, count in (row.output or {}).items():
            occurred[token] = occurred.get(token, 0) + 2 * count
        _put(counts, occurred)
        _put(bias, dict(row.sampling.logit_bias))
        self._holders[slot] = row.output

    def forget(self, slots: Iterable[int]) -> None:
        """Mark slots as stale: their next tokens are chosen without being counted here."""
        for slot in slots:
            self._holders[slot] = None

    def of(self, slots: torch.Tensor) -> SlotEdits:
        """Edits of rows of logits, one for each of ``slots`` int64 [n]."""
        return SlotEdits(self._counts, self._bias, slots)


@dataclass(frozen=True, slots=True)
class SlotEdits:
    """Penalties and bias on logits [n, V], by the tokens counted in ``slots`` [n]."""

    counts: torch.Tensor
    bias: torch.Tensor
    slots: torch.Tensor

    def apply(self, logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
        """The changed logits, a copy."""
        occurred = self.counts.index_select(0, self.slots)
        return edited(
            logits,
            occurred > 0,
            (occurred >> 1).float(),
            self.bias.index_select(0, self.slots),
            rows.repetition[:, None],
            rows.presence[:, None],
            rows.frequency[:, None],
        )

    def note(self, tokens: torch.Tensor) -> None:
        """Count ``tokens`` int64 [n], one in each slot."""
        place = self.slots * self.counts.shape[1] + tokens
        once = torch.full_like(place, 2, dtype=torch.int32)
        self.counts.view(-1).scatter_add_(0, place, once)


def _put(row: torch.Tensor, values: Mapping[int, float]) -> None:
    if values:
        place = torch.tensor(list(values), dtype=torch.int64)
        row[place.to(row.device)] = torch.tensor(list(values.values()), dtype=row.dtype).to(
            row.device
        )

"""Log-probabilities: computed on the device for the rows that ask for them, and copied to the host.

They are launched after a step's outputs are packed, so that they delay no other sequence, and
arrive with the copy of these outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.engine.scheduled_batch import ScheduledBatch, sampled_rows
from kinfolk.sched.plan import ItemKind, TokenLogprob
from kinfolk.state.transfer import Transfer


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """A pending copy to ``numbers`` float64 [n, 1 + T + 2 K], for n rows of items with at most T
    rows: log-probabilities of the next token of the item and of each of its own tokens, then those
    of the K most probable tokens, then these tokens. ``first`` is the first row of each sampled
    item that has some."""

    numbers: npt.NDArray[np.float64]
    width: int
    first: Mapping[int, int]

    def of(
        self, number: int, kept: Sequence[int], emitted: Sequence[int], count: int
    ) -> tuple[TokenLogprob, ...]:
        """The log-probability of each token that a sampled item emits after its ``kept`` rows, with
        ``count`` alternatives. Valid once the copy is done."""
        if number not in self.first:
            return ()
        rows = self.numbers[self.first[number] + np.array(kept)]
        columns = [1 + row for row in kept[1:]] + [0]
        most = (rows.shape[1] - self.width) // 2
        best, tokens = rows[:, self.width : self.width + most], rows[:, self.width + most :]
        return tuple(
            TokenLogprob(
                token,
                float(rows[index, column]),
                tuple(
                    (int(other), float(logprob))
                    for other, logprob in zip(
                        tokens[index, :count], best[index, :count], strict=True
                    )
                ),
            )
            for index, (token, column) in enumerate(zip(emitted, columns, strict=True))
        )


NO_LOGPROBS = PendingLogprobs(np.empty((0, 1)), 1, {})


def send_logprobs(
    batch: ScheduledBatch, logits: torch.Tensor, tokens: torch.Tensor, next_tokens: torch.Tensor
) -> PendingLogprobs:
    """Launch the log-probabilities of a step. ``logits`` float32 [rows, V] of all sampled rows,
    ``tokens`` int64 [R] of all rows, ``next_tokens`` int64 [S]; none of them is read after this
    returns and later launches begin."""
    wanted, most = {}, 0
    for number, rows in batch.wanted_logprobs():
        try:
            most = max(most, operator.index(batch.samplings[number].logprobs or 0))
        except TypeError as error:
            batch.fail(number, error)
        else:
            wanted[number] = rows
    if not wanted:
        return NO_LOGPROBS
    first: dict[int, int] = {}
    numbers: list[int] = []
    places: list[int] = []
    for number, rows in wanted.items():
        first[number] = len(places)
        places += range(rows.start, rows.stop)
        numbers += [number] * (rows.stop - rows.start)
    width = max(sampled_rows(batch.sampled[number]) for number in wanted)
    n, own = len(places), width if batch.has_drafts else 0
    transfer = Transfer(
        {"place": ("int64", (n,)), "number": ("int64", (n,)), "row": ("int64", (n, own))},
        logits.device,
    )
    host = transfer.host
    host["place"][:], host["number"][:] = places, numbers
    host["row"][:] = 0
    for index, number in enumerate(numbers):
        item, start = batch.sampled[number], batch.first_rows[number]
        if item.kind is ItemKind.VERIFY:
            host["row"][index, : item.rows] = range(start, start + item.rows)
    transfer.upload()
    device = transfer.device
    logprobs = logits[device["place"]].log_softmax(1)
    at = torch.cat((next_tokens[device["number"], None], tokens[device["row"]]), 1)
    parts = [logprobs.gather(1, at).double()]
    if most:
        best = logprobs.topk(min(most, logits.shape[1]), 1)
        parts += [best.values.double(), best.indices.double()]
    packed = torch.cat(parts, 1)
    copy = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=logits.is_cuda)
    copy.copy_(packed, non_blocking=True)
    return PendingLogprobs(copy.numpy(), 1 + own, first)

"""What follows the forward of a step, on the device: sampling, verification, commit, and a report.

Nothing here looks at a number from the host, so all of it can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.engine.batch import commit_batch, commit_tree_rows
from kinfolk.engine.frame import SampledSequences
from kinfolk.engine.loading import LoadedModel
from kinfolk.model_api import Forward, StepBatch
from kinfolk.spec.sampling import RowSampling
from kinfolk.spec.verify import NO_ROW, AcceptDrafts, Draft, Kept, VerifyStep
from kinfolk.state.state import State


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """A step as the host hears of it, for B sequences and L lanes of at most T rows.

    ``sound`` [B] whether what is kept of a sequence is finite, ``finite`` [L] whether a lane's
    logits are; ``n_keep``, ``next`` [L] and ``path`` [L, T] as in :class:`Kept`.
    """

    sound: list[int]
    finite: list[int]
    n_keep: list[int]
    next: list[int]
    path: list[list[int]]

    @classmethod
    def read(cls, numbers: npt.NDArray[np.int64], sequences: int, lanes: int) -> StepOutputs:
        """Of what the op ``pack_outputs`` has packed."""
        found: list[int] = numbers.tolist()
        finite, n_keep, following, path = (sequences + lanes * part for part in range(4))
        width = (len(found) - path) // lanes if lanes else 1
        return cls(
            found[:sequences],
            found[finite:n_keep],
            found[n_keep:following],
            found[following:path],
            [found[start : start + width] for start in range(path, len(found), width)],
        )


def sample_and_commit(
    loaded: LoadedModel,
    state: State,
    batch: StepBatch,
    lanes: SampledSequences,
    forward: Forward,
    logits: torch.Tensor,
    sampling: RowSampling,
    *,
    drafts: bool,
) -> torch.Tensor:
    """Choose tokens, advance drafted sequences along what is kept, and report; see above."""
    step, draft = _drafted(batch, lanes, logits, loaded.step_ops.accept_drafts)
    kept: Kept = loaded.hooks.verify(step, draft, sampling)
    if drafts:
        commit = commit_batch(lanes, kept.path, kept.n_keep)
        loaded.model.commit(forward.trace, commit, state)
        if lanes.trees:
            commit_tree_rows(state, batch, lanes, commit)
    if sampling.edits is not None and not drafts:
        sampling.edits.note(kept.next)
    finite = kept.finite if kept.finite is not None else logits.isfinite().all(1)
    return loaded.ops.pack_outputs(
        forward.hidden, batch.last_row, finite, step.rows, kept.n_keep, kept.next, kept.path
    )


def report(loaded: LoadedModel, batch: StepBatch, forward: Forward) -> torch.Tensor:
    """The report of a step without lanes: a slice that asks for no logits may yet spoil what is
    kept of it."""
    nothing = batch.last_row[:0]
    return loaded.ops.pack_outputs(
        forward.hidden,
        batch.last_row,
        nothing.bool(),
        nothing[:, None],
        nothing,
        nothing,
        nothing[:, None],
    )


def _drafted(
    batch: StepBatch, lanes: SampledSequences, logits: torch.Tensor, accept_drafts: AcceptDrafts
) -> tuple[VerifyStep, Draft]:
    """The rows of each lane side by side, [L, T]."""
    if lanes.alone:
        own = slice(lanes.logit.shape[0])
        draft = Draft(
            batch.tokens[own, None], batch.parent_row[own, None], lanes.budget, accept_drafts
        )
        return VerifyStep(logits, lanes.logit[:, None]), draft
    place = torch.arange(lanes.width, device=logits.device)
    inside = place < lanes.count[:, None]
    row = torch.where(inside, lanes.row[:, None] + place, 0)
    above = batch.parent_row[row]
    parents = torch.where(above < 0, -1, above - lanes.row[:, None])
    return (
        VerifyStep(logits, torch.where(inside, lanes.logit[:, None] + place, -1)),
        Draft(
            torch.where(inside, batch.tokens[row], 0),
            torch.where(inside, parents, NO_ROW),
            lanes.budget,
            accept_drafts,
        ),
    )


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A report on its way to the host: its place there, and the event that says it has arrived."""

    numbers: npt.NDArray[np.int64]
    count: int
    arrived: Any


class OutputReader:
    """Brings reports to the host: one copy into pinned memory, one wait for it."""

    def __init__(self, device: torch.device) -> None:
        self.waits = 0
        self._cuda = device.type == "cuda"
        self._places: list[tuple[torch.Tensor, npt.NDArray[np.int64], Any]] = []

    def send(self, packed: torch.Tensor) -> PendingCopy:
        """Let a report follow what computes it; others may be sent before it is received."""
        count = packed.numel()
        if not self._cuda:
            return PendingCopy(packed.numpy(), count, None)
        pinned, numbers, arrived = self._place(count)
        pinned[:count].copy_(packed, non_blocking=True)
        arrived.record()
        self._places.append((pinned, numbers, arrived))
        return PendingCopy(numbers, count, arrived)

    def receive(self, reading: PendingCopy, sequences: int, lanes: int) -> StepOutputs:
        """Wait for a report. At most one other may have been sent since."""
        self.waits += 1
        if reading.arrived is not None:
            reading.arrived.synchronize()
        return StepOutputs.read(reading.numbers[: reading.count], sequences, lanes)

    def _place(self, count: int) -> tuple[torch.Tensor, npt.NDArray[np.int64], Any]:
        """Of two places the one used less recently, in the size that is asked for."""
        if len(self._places) == 2:
            pinned, numbers, arrived = self._places.pop(0)
            if pinned.numel() >= count:
                return pinned, numbers, arrived
        pinned = torch.empty(count, dtype=torch.int64, pin_memory=True)
        return pinned, pinned.numpy(), torch.cuda.Event()

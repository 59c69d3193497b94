"""The outputs of a step: packed on the device, one copy to the host, and a result for each item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.logprobs import NO_LOGPROBS, PendingLogprobs
from kinfolk.engine.scheduled_batch import ScheduledBatch
from kinfolk.model_api import Forward, StepBatch
from kinfolk.sched.plan import Item, ItemKind, ItemResult
from kinfolk.verify_api import Kept

Numbers = npt.NDArray[np.int64]

_NOT_FINITE = "the model returned numbers that are not finite"


# -- on the device --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogitsOutputs:
    """A step up to its logits, float32 [n, V]. ``draft_trace`` is that of the drafter, if there is
    one."""

    batch: StepBatch
    forward: Forward
    logits: torch.Tensor
    draft_trace: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class DeviceOutputs:
    """Outputs of a step of B sequences, S of them sampled, padding included: ``packed`` int64 is
    the result of the op ``pack_outputs``.

    ``captured``: one graph holds the whole step, so the next one can be launched before its result
    is read. ``logits``: float32 [n, V] of all sampled rows, if they are kept, and ``tokens`` int64
    [R] those of the step. ``logprobs`` arrive with the copy of ``packed``.
    """

    packed: torch.Tensor
    sequences: int
    sampled: int
    captured: bool = False
    logits: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    logprobs: PendingLogprobs = NO_LOGPROBS

    def next_tokens(self, count: int) -> torch.Tensor:
        """The tokens of the first ``count`` sampled sequences, int64 [count]."""
        first = self.sequences + 2 * self.sampled
        return self.packed[first : first + count]


def pack_sampled(
    loaded: LoadedModel,
    outputs: LogitsOutputs,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    kept: Kept,
) -> torch.Tensor:
    """Outputs of a step with sampled sequences; ``rows`` int64 [S, T] as in ``VerifyStep``,
    ``tokens`` int64 [S, T] as in ``Draft``."""
    finite = kept.finite if kept.finite is not None else outputs.logits.isfinite().all(1)
    return loaded.step_ops.pack_outputs(
        outputs.forward.hidden,
        outputs.batch.layout.spans,
        finite,
        rows,
        tokens,
        kept.n_keep,
        kept.next,
        kept.path,
    )


def pack_unsampled(loaded: LoadedModel, batch: StepBatch, forward: Forward) -> torch.Tensor:
    """Outputs of a step without sampled sequences: the host still checks that the state of a slice
    without logits is finite."""
    nothing = batch.slot_of_sequence[:0]
    return loaded.step_ops.pack_outputs(
        forward.hidden,
        batch.layout.spans,
        nothing.bool(),
        nothing[:, None],
        nothing[:, None],
        nothing,
        nothing,
        nothing[:, None],
    )


# -- to the host ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """The outputs of a step on the host, for B sequences and S sampled ones of at most T rows.

    ``sound`` [B] 1 if the last hidden row of a sequence is finite, ``finite`` [S] 1 if the logits
    of a sampled one are; ``n_keep``, ``next`` [S] and ``path`` [S, T] as in :class:`Kept`;
    ``emitted`` [S, T], whose first ``n_keep`` tokens are those that a sequence emits.
    """

    sound: list[int]
    finite: list[int]
    n_keep: list[int]
    next: list[int]
    path: list[list[int]]
    emitted: list[list[int]]

    @classmethod
    def read(cls, packed: Numbers, sequences: int, sampled: int) -> StepOutputs:
        """Unpack the result of the op ``pack_outputs``."""
        numbers: list[int] = packed.tolist()
        finite, n_keep, following, path = (sequences + sampled * part for part in range(4))
        width = (len(numbers) - path) // (2 * sampled) if sampled else 1
        emitted = path + sampled * width
        return cls(
            numbers[:sequences],
            numbers[finite:n_keep],
            numbers[n_keep:following],
            numbers[following:path],
            [numbers[start : start + width] for start in range(path, emitted, width)],
            [numbers[start : start + width] for start in range(emitted, len(numbers), width)],
        )


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A pending copy of packed outputs: ``numbers`` are valid after ``wait()``."""

    numbers: Numbers
    sequences: int
    sampled: int
    wait: Callable[[], object]


class OutputReader:
    """Copies packed outputs to the host: one copy into pinned memory, one wait for it."""

    def __init__(self, device: torch.device) -> None:
        self.waits = 0
        self._cuda = device.type == "cuda"
        self._places: list[tuple[torch.Tensor, Numbers, Any]] = []

    def send(self, outputs: DeviceOutputs) -> PendingCopy:
        """Start the copy, on the current stream; one more may start before this is received."""
        packed, counts = outputs.packed, (outputs.sequences, outputs.sampled)
        if not self._cuda:
            return PendingCopy(packed.numpy(), *counts, _arrived)
        count = packed.numel()
        pinned, numbers, event = self._place(count)
        pinned[:count].copy_(packed, non_blocking=True)
        event.record()
        self._places.append((pinned, numbers, event))
        return PendingCopy(numbers[:count], *counts, event.synchronize)

    def receive(self, copy: PendingCopy) -> StepOutputs:
        """Wait for a copy. At most one other may have started since."""
        self.waits += 1
        copy.wait()
        return StepOutputs.read(copy.numbers, copy.sequences, copy.sampled)

    def _place(self, count: int) -> tuple[torch.Tensor, Numbers, Any]:
        """The less recently used of two pinned buffers, with room for ``count`` numbers."""
        if len(self._places) == 2:
            pinned, numbers, event = self._places.pop(0)
            if pinned.numel() >= count:
                return pinned, numbers, event
        pinned = torch.empty(count, dtype=torch.int64, pin_memory=True)
        return pinned, pinned.numpy(), torch.cuda.Event()


def _arrived() -> None:
    """The wait of a CPU, which copies nothing."""


# -- results --------------------------------------------------------------------------------------


def item_results(
    batch: ScheduledBatch, outputs: StepOutputs, logprobs: PendingLogprobs
) -> list[ItemResult]:
    """The result of each item. An item whose numbers are not finite, or whose result cannot be
    built, fails alone."""
    results, sampled = [], 0
    for number, item in enumerate(batch.items):
        if not (item.kind is ItemKind.VERIFY or item.sample):
            results.append(_unsampled(item) if outputs.sound[number] else _failed(item))
            continue
        result = None
        if outputs.finite[sampled] and sampled not in batch.errors:
            try:
                result = _sampled(batch, outputs, sampled, logprobs)
            except Exception as error:
                batch.fail(sampled, error)
        results.append(result or _failed(item, batch.errors.get(sampled, _NOT_FINITE)))
        sampled += 1
    return results


def _sampled(
    batch: ScheduledBatch, outputs: StepOutputs, number: int, logprobs: PendingLogprobs
) -> ItemResult:
    """The result of a sampled item."""
    item = batch.sampled[number]
    kept = outputs.path[number][: outputs.n_keep[number]]
    emitted = tuple(outputs.emitted[number][: len(kept)])
    count = batch.samplings[number].logprobs or 0
    return ItemResult(
        item.lease,
        item.request_id,
        kept=len(kept) if item.kind is ItemKind.VERIFY else len(item.tokens),
        emitted=emitted,
        path=tuple(kept[1:]) if item.proposed else (),
        logprobs=logprobs.of(number, kept, emitted, count),
    )


def _unsampled(item: Item) -> ItemResult:
    """The result of an item without sampling: all of its rows are kept, but for a preview."""
    kept = 0 if item.kind is ItemKind.PREVIEW else len(item.tokens)
    return ItemResult(item.lease, item.request_id, kept)


def _failed(item: Item, error: str = _NOT_FINITE) -> ItemResult:
    return ItemResult(item.lease, item.request_id, 0, error=error)

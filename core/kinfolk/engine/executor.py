"""Executors launch a batch on the device: eagerly in its own size, or as a captured CUDA graph.

A captured step is padded to the next bucket. Lengths, positions, slots, tables and sampling
parameters are in buffers, so one graph of a bucket serves every context. Steps with prompt slices
run eagerly, as do steps that fit no bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

import torch

from kinfolk.engine.commit_batch import sample_and_commit
from kinfolk.engine.cuda_graph import Capture
from kinfolk.engine.input_batch import build_input_batch, fill, take_changes
from kinfolk.engine.input_buffers import BucketShape, InputBuffers, SampledSequences
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.outputs import DeviceOutputs, LogitsOutputs, pack_unsampled
from kinfolk.engine.scheduled_batch import ScheduledBatch
from kinfolk.errors import EngineError
from kinfolk.model_api import GraphShape, StepFn
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.spec.penalties import PenaltyState
from kinfolk.spec.sampling import (
    SamplingKind,
    fill_parameters,
    sampling_over,
    uploaded_sampling,
)
from kinfolk.state.state import State
from kinfolk_kernels.row_layout import LaunchTraits

log = logging.getLogger(__name__)

T = TypeVar("T")

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
SEQUENCES = (1, 2, 4, 8, 16, 24, 32)
WIDTHS = (4, 16, 64)
"""Rows of a drafted sequence. A kernel processes 16 of them at a time."""

MAX_WARMUP_SIZE_LOG2 = 7
"""Steps of two to this power rows or more launch the same kernels."""


@dataclass(slots=True)
class ExecutorCounters:
    """Counts since the start; ``uploads`` are copies of a step's inputs to the device."""

    captures: int = 0
    replays: int = 0
    eager_steps: int = 0
    uploads: int = 0


class Executor(Protocol):
    """Launches batches of one model on one state."""

    counters: ExecutorCounters

    def launch(self, batch: ScheduledBatch) -> DeviceOutputs:
        """Run a batch up to its packed outputs; the host does not wait for the device."""
        ...

    def invalidate(self) -> None:
        """Drop assumptions about the device's memory, after a step has failed."""
        ...


class EagerExecutor:
    """Runs each batch in its own size, launch by launch."""

    def __init__(self, loaded: LoadedModel, state: State, kernel_warmup: KernelWarmup) -> None:
        self.loaded, self.state, self.kernel_warmup = loaded, state, kernel_warmup
        self.counters = ExecutorCounters()
        self._steps: dict[GraphShape, StepFn] = {}

    def launch(self, batch: ScheduledBatch) -> DeviceOutputs:
        if batch.device_tokens is not None:
            raise EngineError("a step whose tokens the host does not know was not captured")
        self.counters.eager_steps += 1
        self.counters.uploads += 1
        inputs = build_input_batch(batch.items, self.state)
        step, model = inputs.batch, self.loaded.model
        kinds = frozenset(item.kind for item in batch.items)
        step_fn = self._step_fn(kinds, step.rows, len(batch.items))
        # Up to a limit, the kernels that are launched depend on the number of rows.
        size = min((step.rows - 1).bit_length(), MAX_WARMUP_SIZE_LOG2)
        if not batch.sampled:
            self.kernel_warmup.before((size, kinds), lambda: step_fn(step, self.state))
            forward = step_fn(step, self.state)
            return DeviceOutputs(pack_unsampled(self.loaded, step, forward), len(batch.items), 0)

        def to_logits() -> LogitsOutputs:
            forward = step_fn(step, self.state)
            return LogitsOutputs(step, forward, model.head(forward.hidden[step.logit_rows]))

        self.kernel_warmup.before((size, kinds), to_logits)
        return self.sample(batch, to_logits(), inputs.sampled)

    def sample(
        self, batch: ScheduledBatch, outputs: LogitsOutputs, sampled: SampledSequences
    ) -> DeviceOutputs:
        """Sampling, verification and commit, from the logits on."""
        self.counters.uploads += 1
        loaded, parameters = self.loaded, batch.parameters()
        sampling = uploaded_sampling(
            parameters, batch.entries(), batch.sampling_kind, loaded.device, loaded.step_ops.sample
        )
        # Drop the logits of padding rows.
        outputs = replace(outputs, logits=outputs.logits[: len(parameters)])
        packed = sample_and_commit(
            loaded, self.state, outputs, sampled, sampling, drafts=batch.has_drafts
        )
        return DeviceOutputs(
            packed,
            outputs.batch.slot_of_sequence.shape[0],
            len(sampled.count),
            logits={number: outputs.logits[rows] for number, rows in batch.wanted_logprobs()},
        )

    def invalidate(self) -> None:
        """Assumes nothing about the device's memory, so drops nothing."""

    def _step_fn(self, kinds: frozenset[ItemKind], rows: int, sequences: int) -> StepFn:
        kind = next(iter(kinds)).value if len(kinds) == 1 else "mixed"
        shape = GraphShape(kind, rows, sequences)
        if shape not in self._steps:
            self._steps[shape] = self.loaded.hooks.build_graph(self.loaded.model, shape)
        return self._steps[shape]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A fixed size of steps. ``width`` is the most rows of a drafted sequence, 1 = no drafts."""

    kind: Literal["decode", "verify"]
    rows: int
    sequences: int
    width: int
    trees: bool

    @classmethod
    def smallest(cls, items: Sequence[Item], least: int = 1) -> Bucket | None:
        """The smallest bucket for ``items`` and for ``least`` sequences; ``None`` if no bucket fits
        and the items run eagerly."""
        if any(item.kind is ItemKind.PREFILL or item.stores for item in items):
            return None
        drafted = [len(item.tokens) for item in items if item.kind is ItemKind.VERIFY]
        sequences = _next_size(len(items), SEQUENCES, least)
        if not drafted:
            return None if sequences is None else cls("decode", sequences, sequences, 1, False)
        rows = _next_size(sum(len(item.tokens) for item in items), ROWS, least)
        width = _next_size(max(drafted), WIDTHS)
        if rows is None or sequences is None or width is None:
            return None
        trees = any(item.parents is not None for item in items)
        return cls("verify", rows, sequences, width, trees)

    @property
    def traits(self) -> LaunchTraits:
        counts = tuple(range(1, self.width + 1))
        return LaunchTraits(True, self.width if self.kind == "verify" else 0, self.trees, counts)

    @property
    def shape(self) -> BucketShape:
        # With several rows a sequence, padding rows form one more sequence.
        sequences = self.sequences + (self.kind == "verify")
        return BucketShape(self.rows, sequences, sequences, self.rows, short=sequences)


@dataclass(frozen=True, slots=True)
class CapturedStep(Generic[T]):
    """A captured step of a bucket: its buffers and its replay."""

    buffers: InputBuffers
    replay: Callable[[], T]


class GraphExecutor:
    """Replays the captured step of a batch's bucket; runs batches that fit no bucket eagerly.

    A captured step includes sampling and commit, unless these cannot be captured: with a policy
    that verifies, with log-probabilities, or with drafts and penalties, it ends at the logits and
    the rest is launched eagerly. ``least``: buckets for fewer sequences are not used, so that a
    row's numbers do not depend on the number of sequences.
    """

    def __init__(self, eager: EagerExecutor, capture: Capture, *, least: int = 1) -> None:
        self.loaded, self.state = eager.loaded, eager.state
        self.capture, self.counters = capture, eager.counters
        self.least = least
        self._eager = eager
        self._policy_verifies = self.loaded.hooks.is_overruled("verify")
        self._steps: dict[tuple[Bucket, SamplingKind], CapturedStep[DeviceOutputs]] = {}
        self._logits_steps: dict[Bucket, CapturedStep[LogitsOutputs]] = {}
        self._penalties: PenaltyState | None = None

    @property
    def buckets(self) -> frozenset[Bucket]:
        """The buckets that have a captured step."""
        return frozenset(self._logits_steps).union(bucket for bucket, _ in self._steps)

    @property
    def penalties(self) -> PenaltyState:
        """Tokens counted in each slot; created by the first step that has penalties."""
        if self._penalties is None:
            slots, vocabulary = self.state.limits.slots + 1, self.loaded.info.vocabulary
            self._penalties = PenaltyState(slots, vocabulary, self.state.device)
        return self._penalties

    def launch(self, batch: ScheduledBatch) -> DeviceOutputs:
        """Raises :class:`EngineError` if a graph cannot be captured."""
        bucket = Bucket.smallest(batch.items, self.least)
        if bucket is None:
            self._forget_penalties(batch)
            return self._eager.launch(batch)
        if self._ends_at_logits(batch):
            self._forget_penalties(batch)
            return self._launch_to_logits(batch, bucket)
        return self._launch_whole(batch, bucket)

    def invalidate(self) -> None:
        if self._penalties is not None:
            self._penalties.forget(range(self.state.limits.slots + 1))

    def _forget_penalties(self, batch: ScheduledBatch) -> None:
        """Mark the penalty counts of ``batch`` as stale: they will lack its tokens."""
        if self._penalties is not None:
            self._penalties.forget(item.lease.slot for item in batch.sampled)

    def _ends_at_logits(self, batch: ScheduledBatch) -> bool:
        return self._policy_verifies or any(
            sampling.logprobs is not None or (batch.has_drafts and sampling.is_edited)
            for sampling in batch.samplings
        )

    def _launch_whole(self, batch: ScheduledBatch, bucket: Bucket) -> DeviceOutputs:
        sampling = batch.sampling_kind
        step = self._steps.get((bucket, sampling))
        if step is None:
            step = self._steps[bucket, sampling] = self.capture_whole(bucket, sampling)
        self._fill(step.buffers, batch)
        if not sampling.greedy or sampling.edited:
            fill_parameters(step.buffers.host, batch.parameters())
        if sampling.edited:
            for number, item, (row,) in batch.rows():
                try:
                    self.penalties.enter(item.lease.slot, row)
                except Exception as error:
                    batch.fail(number, error)
        return self.replay(step, batch.device_tokens)

    def _launch_to_logits(self, batch: ScheduledBatch, bucket: Bucket) -> DeviceOutputs:
        step = self._logits_steps.get(bucket)
        if step is None:
            step = self._logits_steps[bucket] = self.capture_to_logits(bucket)
        self._fill(step.buffers, batch)
        outputs = self.replay(step, batch.device_tokens)
        drafted = [len(item.tokens) for item in batch.items if item.kind is ItemKind.VERIFY]
        sampled = step.buffers.sampled(bucket.traits, len(batch.items), max(drafted, default=1))
        return self._eager.sample(batch, outputs, sampled)

    def _fill(self, buffers: InputBuffers, batch: ScheduledBatch) -> None:
        buffers.clear()
        buffers.put_changes(take_changes(self.state))
        fill(buffers, batch.items)

    def replay(self, step: CapturedStep[T], tokens: torch.Tensor | None = None) -> T:
        """Upload the buffers and replay; the host does not wait. ``tokens`` int64 [R], on the
        device, replace those of the buffers if the host does not know them yet."""
        step.buffers.upload()
        if tokens is not None:
            step.buffers.device["tokens"][: tokens.shape[0]].copy_(tokens)
        self.counters.uploads += 1
        self.counters.replays += 1
        return step.replay()

    # -- capturing ----------------------------------------------------------------------------

    def capture_whole(self, bucket: Bucket, sampling: SamplingKind) -> CapturedStep[DeviceOutputs]:
        buffers = self._padded_buffers(bucket)
        body = self._whole(buffers, bucket, sampling)
        if not sampling.edited:
            self._eager.kernel_warmup.before((bucket, sampling), body)
        return self._captured(buffers, body, f"{bucket}, {sampling}")

    def capture_to_logits(self, bucket: Bucket) -> CapturedStep[LogitsOutputs]:
        buffers = self._padded_buffers(bucket)
        body = self._to_logits(buffers, bucket)
        self._eager.kernel_warmup.before(bucket, body)
        return self._captured(buffers, body, f"{bucket} up to its logits")

    def _captured(self, buffers: InputBuffers, body: Callable[[], T], name: str) -> CapturedStep[T]:
        step = CapturedStep(buffers, self.capture.capture(body))
        self.counters.captures += 1
        log.info("captured %s", name)
        return step

    def _padded_buffers(self, bucket: Bucket) -> InputBuffers:
        single_rows = bucket.kind == "decode"
        buffers = InputBuffers(self.state, bucket.shape, single_rows=single_rows, stages=2)
        buffers.upload()  # warm-ups must see padding
        return buffers

    def _to_logits(self, buffers: InputBuffers, bucket: Bucket) -> Callable[[], LogitsOutputs]:
        model, state, traits = self.loaded.model, self.state, bucket.traits
        shape = GraphShape(bucket.kind, bucket.rows, bucket.sequences)
        step_fn = self.loaded.hooks.build_graph(model, shape)

        def body() -> LogitsOutputs:
            buffers.enter_changes()
            batch = buffers.batch(traits, full_width=True)
            forward = step_fn(batch, state)
            return LogitsOutputs(batch, forward, model.head(forward.hidden))

        return body

    def _whole(
        self, buffers: InputBuffers, bucket: Bucket, sampling: SamplingKind
    ) -> Callable[[], DeviceOutputs]:
        loaded, state, shape = self.loaded, self.state, bucket.shape
        to_logits = self._to_logits(buffers, bucket)

        def body() -> DeviceOutputs:
            outputs, sampled = to_logits(), buffers.sampled(bucket.traits)
            edits = self.penalties.of(sampled.slot) if sampling.edited else None
            rows = sampling_over(buffers.device, sampling, edits, loaded.step_ops.sample)
            drafts = bucket.kind == "verify"
            packed = sample_and_commit(loaded, state, outputs, sampled, rows, drafts=drafts)
            return DeviceOutputs(packed, shape.sequences, shape.sampled, captured=True)

        return body


def _next_size(size: int, sizes: Sequence[int], least: int = 1) -> int | None:
    """The least of ``sizes`` that is at least ``size`` and ``least``; ``None`` if there is none."""
    return next((each for each in sizes if each >= max(size, least)), None)

"""Executors launch a batch on the device: eagerly in its own size, or as a captured CUDA graph.

A captured step is padded to the next bucket. Lengths, positions, slots, tables and sampling
parameters are in buffers, so one graph of a bucket serves every context and any mixture of slices
and decoding. Steps that fit no bucket run eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch

from kinfolk.engine.buckets import Bucket, Buckets, draft_lanes, likely_lanes
from kinfolk.engine.commit_batch import sample_and_commit
from kinfolk.engine.cuda_graph import Capture
from kinfolk.engine.draft_buffers import DraftBuffers, Lane
from kinfolk.engine.drafting import Drafting
from kinfolk.engine.input_batch import build_input_batch, fill, take_changes
from kinfolk.engine.input_buffers import InputBuffers, SampledSequences
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.logprobs import send_logprobs
from kinfolk.engine.outputs import DeviceOutputs, LogitsOutputs, pack_unsampled
from kinfolk.engine.scheduled_batch import ScheduledBatch
from kinfolk.errors import EngineError
from kinfolk.model_api import Forward, GraphShape, StepBatch, StepFn
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind
from kinfolk.spec.penalties import PenaltyState
from kinfolk.spec.sampling import (
    SamplingKind,
    sampling_over,
    uploaded_sampling,
)
from kinfolk.state.state import State

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

MAX_WARMUP_SIZE_LOG2 = 7
"""Steps of two to this power rows or more launch the same kernels."""


@dataclass(slots=True)
class ExecutorCounters:
    """Counts since the start; ``uploads`` are copies of a step's inputs to the device, ``drafts``
    launches of a drafter with weights."""

    captures: int = 0
    replays: int = 0
    eager_steps: int = 0
    uploads: int = 0
    drafts: int = 0


class Executor(Protocol):
    """Launches batches of one model on one state."""

    counters: ExecutorCounters

    def launch(self, batch: ScheduledBatch) -> DeviceOutputs:
        """Run a batch up to its packed outputs; the host does not wait for the device."""
        ...

    @property
    def drafting(self) -> Drafting | None:
        """The drafter with weights, if there is one."""
        ...

    def draft(self, lanes: Sequence[Lane]) -> int:
        """Launch a draft behind the last step; the host does not wait. Returns the tokens, one
        after another, that it proposes for each lane; 0 if it failed."""
        ...

    def invalidate(self) -> None:
        """Drop assumptions about the device's memory, after a step has failed."""
        ...

    def warm_up(self, limits: SchedulerLimits) -> Iterator[tuple[int, int, str]]:
        """Prepare likely steps one by one: numbers of those done and in all, and what was done."""
        ...


class EagerExecutor:
    """Runs each batch in its own size, launch by launch."""

    def __init__(
        self,
        loaded: LoadedModel,
        state: State,
        kernel_warmup: KernelWarmup,
        counters: ExecutorCounters | None = None,
    ) -> None:
        self.loaded, self.state, self.kernel_warmup = loaded, state, kernel_warmup
        self.counters = counters or ExecutorCounters()
        self._steps: dict[GraphShape, StepFn] = {}
        self._penalties: PenaltyState | None = None
        self.drafting: Drafting | None = None
        if loaded.drafter is not None:
            vocabulary = loaded.info.vocabulary
            self.drafting = Drafting(loaded.drafter, vocabulary, loaded.ops, state, kernel_warmup)

    @property
    def penalties(self) -> PenaltyState:
        """Tokens counted in each slot; created by the first step that has penalties."""
        if self._penalties is None:
            slots, vocabulary = self.state.limits.slots + 1, self.loaded.info.vocabulary
            self._penalties = PenaltyState(slots, vocabulary, self.state.device)
        return self._penalties

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
            self.kernel_warmup.before((size, kinds), lambda: self.forward(step_fn, step))
            forward, _ = self.forward(step_fn, step)
            return DeviceOutputs(pack_unsampled(self.loaded, step, forward), len(batch.items), 0)

        def to_logits() -> LogitsOutputs:
            forward, draft_trace = self.forward(step_fn, step)
            normed = model.norm(forward.hidden[step.logit_rows])
            return LogitsOutputs(step, forward, model.logits(normed), draft_trace)

        self.kernel_warmup.before((size, kinds), to_logits)
        return self.sample(batch, to_logits(), inputs.sampled)

    def forward(self, step_fn: StepFn, step: StepBatch) -> tuple[Forward, Sequence[Any]]:
        """A forward of the model with proposed rows filled, and the drafter's state behind it.
        Returns the drafter's trace too."""
        if self.drafting is None:
            return step_fn(step, self.state), ()
        self.drafting.place(step)
        forward = step_fn(step, self.state)
        return forward, self.drafting.extend(forward, step)

    def sample(
        self, batch: ScheduledBatch, outputs: LogitsOutputs, sampled: SampledSequences
    ) -> DeviceOutputs:
        """Sampling, verification and commit, from the logits on."""
        self.counters.uploads += 1
        loaded, parameters, kind = self.loaded, batch.parameters, batch.sampling_kind
        edits = None
        if kind.edited:
            batch.enter_penalties(self.penalties)
            edits = self.penalties.edits(outputs.batch, sampled.slot, len(parameters))
        sampling = uploaded_sampling(parameters, kind, edits, loaded.device, loaded.step_ops.sample)
        # Drop the logits of padding rows.
        outputs = replace(outputs, logits=outputs.logits[: len(parameters)])
        packed = sample_and_commit(
            loaded,
            self.state,
            outputs,
            sampled,
            sampling,
            drafts=batch.has_drafts,
            drafting=self.drafting,
        )
        done = DeviceOutputs(packed, outputs.batch.slot_of_sequence.shape[0], len(sampled.count))
        return with_logprobs(done, batch, outputs.logits, outputs.batch.tokens)

    def draft(self, lanes: Sequence[Lane]) -> int:
        return self.launch_draft(lanes, lambda drafting: drafting.launch(lanes))

    def launch_draft(self, lanes: Sequence[Lane], launch: Callable[[Drafting], None]) -> int:
        """Launch a draft for lanes in whatever way, see :meth:`Executor.draft`; one that fails is
        counted."""
        drafting = self.drafting
        if drafting is None:
            raise EngineError("a draft was asked for, and there is no drafter with weights")
        if drafting.broken:
            return 0
        self.counters.drafts += 1
        try:
            launch(drafting)
        except Exception:
            drafting.note_failure()
            return 0
        return drafting.depth(len(lanes))

    def invalidate(self) -> None:
        if self._penalties is not None:
            self._penalties.forget()

    def warm_up(self, limits: SchedulerLimits) -> Iterator[tuple[int, int, str]]:
        """Eager steps have nothing to prepare."""
        return iter(())

    def _step_fn(self, kinds: frozenset[ItemKind], rows: int, sequences: int) -> StepFn:
        kind = next(iter(kinds)).value if len(kinds) == 1 else "mixed"
        shape = GraphShape(kind, rows, sequences)
        if shape not in self._steps:
            self._steps[shape] = self.loaded.hooks.build_graph(self.loaded.model, shape)
        return self._steps[shape]


@dataclass(frozen=True, slots=True)
class CapturedStep(Generic[T]):
    """A captured step of a bucket: its buffers and its replay."""

    buffers: InputBuffers
    replay: Callable[[], T]


@dataclass(frozen=True, slots=True)
class CapturedDraft:
    """A captured draft of a number of lanes: its buffers and its replay."""

    buffers: DraftBuffers
    replay: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepKind:
    """What is captured once: a bucket, its sampling, and whether its logits are kept, which takes
    memory that steps otherwise share."""

    bucket: Bucket
    sampling: SamplingKind
    keeps_logits: bool = False

    @classmethod
    def of(cls, bucket: Bucket, sampling: SamplingKind, *, keeps_logits: bool = False) -> StepKind:
        """The kind for steps with this sampling."""
        greedy = sampling.greedy and not bucket.samples_greedy_rows
        return cls(bucket, SamplingKind(greedy, 0, sampling.edited), keeps_logits)


class GraphExecutor:
    """Replays the captured step of a batch's bucket; runs batches that fit no bucket eagerly.

    A captured step includes sampling and commit, unless a policy verifies: then it ends at the
    logits and the rest is launched eagerly. Log-probabilities are launched after it, from logits
    that it keeps.
    """

    def __init__(self, eager: EagerExecutor, capture: Capture, sizes: Buckets) -> None:
        self.loaded, self.state = eager.loaded, eager.state
        self.capture, self.counters = capture, eager.counters
        self.sizes = sizes
        self._eager = eager
        self._policy_verifies = self.loaded.hooks.is_overruled("verify")
        drafter = self.loaded.drafter
        self._planted = drafter is not None and drafter.planted is not None
        # In the order of their last use.
        self._steps: dict[StepKind, CapturedStep[DeviceOutputs]] = {}
        self._logits_steps: dict[Bucket, CapturedStep[LogitsOutputs]] = {}
        self._draft_steps: dict[int, CapturedDraft] = {}

    @property
    def buckets(self) -> frozenset[Bucket]:
        """The buckets that have a captured step."""
        return frozenset(self._logits_steps).union(kind.bucket for kind in self._steps)

    def launch(self, batch: ScheduledBatch) -> DeviceOutputs:
        """Raises :class:`EngineError` if a graph cannot be captured."""
        if batch.bucket is None:
            return self._eager.launch(batch)
        if self._policy_verifies:
            return self._launch_to_logits(batch, batch.bucket)
        return self._launch_whole(batch, batch.bucket)

    @property
    def drafting(self) -> Drafting | None:
        return self._eager.drafting

    def draft(self, lanes: Sequence[Lane]) -> int:
        launch = partial(self._launch_draft, lanes)
        return self._eager.launch_draft(lanes, launch)

    def _launch_draft(self, lanes: Sequence[Lane], drafting: Drafting) -> None:
        size = draft_lanes(len(lanes))
        if size is None:
            drafting.launch(lanes)
            return
        step = self._draft_steps.get(size) or self.capture_draft(drafting, size)
        step.buffers.put(lanes)
        step.buffers.upload()
        step.replay()

    def invalidate(self) -> None:
        self._eager.invalidate()

    def _launch_whole(self, batch: ScheduledBatch, bucket: Bucket) -> DeviceOutputs:
        wants_logprobs = any(each.logprobs is not None for each in batch.samplings)
        kind = StepKind.of(bucket, batch.sampling_kind, keeps_logits=wants_logprobs)
        step, sampling = self._step(kind), kind.sampling
        self._fill(step.buffers, batch)
        if not sampling.greedy or sampling.edited or self._planted:
            batch.put_parameters(step.buffers)
        if sampling.edited:
            batch.enter_penalties(self._eager.penalties)
        outputs = self.replay(step, batch.device_tokens)
        if outputs.logits is None or outputs.tokens is None:
            return outputs
        return with_logprobs(outputs, batch, outputs.logits, outputs.tokens)

    def _step(self, kind: StepKind) -> CapturedStep[DeviceOutputs]:
        return self._kept(self._steps, kind, self.capture_whole)

    def _kept(
        self, steps: dict[K, CapturedStep[T]], key: K, capture: Callable[[K], CapturedStep[T]]
    ) -> CapturedStep[T]:
        """The captured step of a key. The least recently used one is dropped when there are too
        many: a driver keeps memory for each launch of a graph."""
        step = steps.pop(key, None) or capture(key)
        steps[key] = step
        if len(steps) > max(1, self.loaded.captures):
            del steps[next(iter(steps))]
        return step

    def _launch_to_logits(self, batch: ScheduledBatch, bucket: Bucket) -> DeviceOutputs:
        step = self._kept(self._logits_steps, bucket, self.capture_to_logits)
        self._fill(step.buffers, batch)
        outputs = self.replay(step, batch.device_tokens)
        if not batch.sampled:
            packed = pack_unsampled(self.loaded, outputs.batch, outputs.forward)
            return DeviceOutputs(packed, bucket.shape.sequences, 0)
        drafted = [item.rows for item in batch.items if item.kind is ItemKind.VERIFY]
        sampled = step.buffers.sampled(bucket.traits, len(batch.sampled), max(drafted, default=1))
        return self._eager.sample(batch, outputs, sampled)

    def _fill(self, buffers: InputBuffers, batch: ScheduledBatch) -> None:
        buffers.turn()
        fill(buffers, batch.items)
        buffers.put_changes(take_changes(self.state))

    def replay(self, step: CapturedStep[T], tokens: torch.Tensor | None = None) -> T:
        """Upload the buffers and replay; the host does not wait. ``tokens`` int64 [R], on the
        device, replace those of the buffers if the host does not know them yet."""
        step.buffers.upload()
        if tokens is not None:
            step.buffers.device["tokens"][: tokens.shape[0]].copy_(tokens)
        self.counters.uploads += 1
        self.counters.replays += 1
        return step.replay()

    def warm_up(self, limits: SchedulerLimits) -> Iterator[tuple[int, int, str]]:
        """Capture the steps that ``limits`` make likely, one by one, unless a policy verifies."""
        if self._policy_verifies:
            return
        samplings = (SamplingKind(True, 0), SamplingKind(False, 0))
        likely = (
            StepKind.of(bucket, sampling)
            for bucket in self.sizes.likely(limits)
            for sampling in samplings
        )
        kinds = list(dict.fromkeys(likely))[: self.loaded.captures]
        drafting = self.drafting
        lanes = [] if drafting is None else likely_lanes(limits.slots)
        total = len(kinds) + len(lanes)
        for number, kind in enumerate(kinds, 1):
            self._step(kind)
            yield number, total, str(kind.bucket)
        for number, count in enumerate(lanes, 1 + len(kinds)):
            if drafting is not None:
                self.capture_draft(drafting, count)
            yield number, total, f"draft: {count} lanes"

    # -- capturing ----------------------------------------------------------------------------

    def capture_whole(self, kind: StepKind) -> CapturedStep[DeviceOutputs]:
        buffers = self._padded_buffers(kind.bucket)
        body = self._whole(buffers, kind)
        if not kind.sampling.edited:
            self._eager.kernel_warmup.before((kind.bucket, kind.sampling), body)
        return self._captured(buffers, body, f"{kind.bucket}, {kind.sampling}")

    def capture_to_logits(self, bucket: Bucket) -> CapturedStep[LogitsOutputs]:
        buffers = self._padded_buffers(bucket)
        body = self._to_logits(buffers, bucket)
        self._eager.kernel_warmup.before(bucket, body)
        return self._captured(buffers, body, f"{bucket} up to its logits")

    def capture_draft(self, drafting: Drafting, lanes: int) -> CapturedDraft:
        buffers = drafting.buffers(lanes, stages=2)
        buffers.upload()  # warm-ups must see padding
        self._eager.kernel_warmup.before(("draft", lanes), lambda: drafting.draft(buffers))
        step = CapturedDraft(buffers, self.capture.capture(lambda: drafting.draft(buffers)))
        self._draft_steps[lanes] = step
        self.counters.captures += 1
        log.info("captured a draft of %d lanes", lanes)
        return step

    def _captured(self, buffers: InputBuffers, body: Callable[[], T], name: str) -> CapturedStep[T]:
        step = CapturedStep(buffers, self.capture.capture(body))
        self.counters.captures += 1
        log.info("captured %s", name)
        return step

    def _padded_buffers(self, bucket: Bucket) -> InputBuffers:
        single_rows = bucket.kind == "decode"
        shape = replace(bucket.shape, changes=self.state.block_tables.usual_changes)
        buffers = InputBuffers(self.state, shape, single_rows=single_rows, stages=2)
        buffers.upload()  # warm-ups must see padding
        return buffers

    def _to_logits(self, buffers: InputBuffers, bucket: Bucket) -> Callable[[], LogitsOutputs]:
        model, traits = self.loaded.model, bucket.traits
        shape = GraphShape(bucket.kind, bucket.rows, bucket.sequences)
        step_fn = self.loaded.hooks.build_graph(model, shape)

        def body() -> LogitsOutputs:
            buffers.enter_changes()
            batch = buffers.batch(traits, full_width=True)
            forward, draft_trace = self._eager.forward(step_fn, batch)
            hidden = forward.hidden
            if bucket.kind == "mixed":  # else all rows have logits
                hidden = hidden[batch.logit_rows]
            logits = model.logits(model.norm(hidden))
            return LogitsOutputs(batch, forward, logits, draft_trace)

        return body

    def _whole(self, buffers: InputBuffers, kind: StepKind) -> Callable[[], DeviceOutputs]:
        loaded, state, bucket, sampling = self.loaded, self.state, kind.bucket, kind.sampling
        shape = bucket.shape
        to_logits = self._to_logits(buffers, bucket)

        def body() -> DeviceOutputs:
            outputs, sampled = to_logits(), buffers.sampled(bucket.traits)
            edits = None
            if sampling.edited:
                edits = self._eager.penalties.edits(outputs.batch, sampled.slot)
            rows = sampling_over(buffers.device, sampling, edits, loaded.step_ops.sample)
            drafts = bucket.drafted > 0
            packed = sample_and_commit(
                loaded,
                state,
                outputs,
                sampled,
                rows,
                drafts=drafts,
                drafting=self._eager.drafting,
            )
            done = DeviceOutputs(packed, shape.sequences, shape.sampled, True)
            if not kind.keeps_logits:
                return done
            return replace(done, logits=outputs.logits, tokens=outputs.batch.tokens)

        return body


def with_logprobs(
    outputs: DeviceOutputs, batch: ScheduledBatch, logits: torch.Tensor, tokens: torch.Tensor
) -> DeviceOutputs:
    """``outputs`` with the log-probabilities that ``batch`` asks for."""
    logprobs = send_logprobs(batch, logits, tokens, outputs.next_tokens(len(batch.sampled)))
    return replace(outputs, logprobs=logprobs)

"""The model runner: applies a plan's operations to the state, launches items, collects results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from time import perf_counter

import torch

from kinfolk.engine.buckets import SEQUENCES, Bucket, Buckets
from kinfolk.engine.chunk_scoring import ChunkScoring, PendingScores
from kinfolk.engine.cuda_graph import capture_for
from kinfolk.engine.draft_buffers import Lane
from kinfolk.engine.executor import EagerExecutor, Executor, ExecutorCounters, GraphExecutor
from kinfolk.engine.expert_reports import ExpertReports
from kinfolk.engine.history import History
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel, Progress
from kinfolk.engine.outputs import DeviceOutputs, OutputReader, PendingCopy, item_results
from kinfolk.engine.prompt_scorer import PendingReading
from kinfolk.engine.qk_scorer import QkScorer
from kinfolk.engine.readers import Readers
from kinfolk.engine.scheduled_batch import ScheduledBatch
from kinfolk.errors import EngineError
from kinfolk.plans import ExpertResidency, ExpertSwap, ExpertUse
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import (
    Item,
    ItemResult,
    ScoreRequest,
    StepPlan,
    StepResult,
)
from kinfolk.state.geometry import chunks_for
from kinfolk.state.operations import StateOperation
from kinfolk.state.state import State

log = logging.getLogger(__name__)

MAX_INVARIANT_SEQUENCES = {"cpu": 1, "cuda": SEQUENCES[-1]}
"""Most sequences of a decode step with --batch-invariant, by device. GPU kernels compute all rows
of a step in the same way. CPU libraries do not: vector code leaves the end of a tensor to scalar
code, and the edges of a matrix product are computed differently.
"""


@dataclass(frozen=True, slots=True)
class PendingItems:
    """Items that were launched together, and the pending copy of their outputs. ``proposed``:
    tokens, one after another, of the draft that was launched behind them for those that ask for
    one, 0 = none was; ``reported``: counters of experts
    come with the copy."""

    batch: ScheduledBatch
    outputs: DeviceOutputs
    copy: PendingCopy
    proposed: int = 0
    reported: bool = False


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A launched step. If it runs in several parts, ``results`` are those of all parts but the
    last, and ``last`` is the part that is still pending. ``launched``: when its launch began.
    ``scores``: what was asked for behind it; ``readings``: the parts of other models, which may be
    all of it."""

    plan: StepPlan
    results: Sequence[ItemResult]
    last: PendingItems | None
    launched: float = 0.0
    scores: Sequence[PendingScores] = ()
    readings: Sequence[PendingReading] = ()

    @property
    def only_decodes(self) -> bool:
        """Whether this is one captured step in which no prompt is read and nothing failed."""
        return (
            self.last is not None
            and not self.results
            and not self.readings
            and self.last.outputs.captured
            and not self.last.batch.errors
            and not any(item.of_prompt for item in self.plan.items)
        )

    @property
    def next_tokens(self) -> torch.Tensor | None:
        """The chosen tokens, int64 [items] on the device, which the next step reads. ``None`` if
        this step must be collected before the next is launched: overlap needs rows of which it is
        certain that they are kept."""
        items = self.plan.items
        if self.last is None or not self.only_decodes or any(item.is_drafted for item in items):
            return None
        return self.last.outputs.next_tokens(len(self.last.batch.items))


class ModelRunner:
    """Runs step plans on one model and its state.

    ``uncapturable_ops``: ops whose back ends no CUDA graph can hold, with the reason. If there is
    one, every step runs eagerly; with --batch-invariant, :class:`EngineError` is raised instead.
    """

    def __init__(self, loaded: LoadedModel, state: State, readers: Readers | None = None) -> None:
        self.state = state
        self._readers = readers or Readers()
        self._max_sequences = (
            MAX_INVARIANT_SEQUENCES[loaded.device.type] if loaded.batch_invariant else None
        )
        self._reader = OutputReader(loaded.device)
        scorer, limits = state.scorer, loaded.limits
        self._scorer = scorer if isinstance(scorer, QkScorer) else None
        self._scoring = ChunkScoring(
            *(loaded.hooks, self._scorer, limits.slots, chunks_for(limits.context)),
            loaded.device,
            reads=self._readers.chunks is not None,
        )
        self._collected = 0.0
        self._captures = 0
        self._counters = {"steps": 0, "rows": 0, "decode_steps": 0, "prefill_rows": 0}
        self._executed = ExecutorCounters()
        self.use(loaded)

    def use(self, loaded: LoadedModel) -> None:
        """Run the steps of ``loaded`` from now on; captured steps of another model are dropped. No
        step may be pending."""
        self.loaded = loaded
        self.state.real_rows = loaded.real_rows
        experts, source = loaded.experts, loaded.source
        counted = source is None or source.ready.experts.steps_count
        layers = 0 if experts is None else len(loaded.config.experts)
        self._reports = None if experts is None else ExpertReports(experts, layers, counted=counted)
        self.uncapturable_ops: Mapping[str, str] = {}
        self._buckets: Buckets | None = None
        warmup = KernelWarmup(loaded.ops, loaded.device)
        eager = EagerExecutor(loaded, self.state, warmup, self._executed)
        self.executor: Executor = eager
        if loaded.graphs:
            self.uncapturable_ops = uncapturable_ops(loaded)
            if not self.uncapturable_ops:
                sizes = (self._max_sequences, loaded.usual_draft, loaded.slice_rows)
                self._buckets = Buckets.of(self.state, *sizes)
                self.executor = GraphExecutor(eager, capture_for(loaded.device), self._buckets)
        if self._scorer is not None and self._scorer.nbytes:
            with self._on_device(), torch.inference_mode():
                self._scorer.warm_up(warmup, self.state)
        if self.uncapturable_ops:
            reasons = "; ".join(f"{op}: {why}" for op, why in self.uncapturable_ops.items())
            if loaded.batch_invariant:
                raise EngineError(f"--batch-invariant needs captured steps; {reasons}")
            log.warning("every step runs eagerly, so each takes longer: %s", reasons)

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the start. ``allocations`` counts calls of the driver, not memory that
        torch reuses."""
        return {
            **self._counters,
            **asdict(self.executor.counters),
            "saves": self.state.copies.saves,
            "loads": self.state.copies.loads,
            "saved_rows": self.state.saved_rows,
            "saved_bytes": self.state.copies.saved_bytes,
            "loaded_bytes": self.state.copies.loaded_bytes,
            "waits": self._reader.waits,
            "kvflash_scorer_failures": self._scoring.failures,
            "kvflash_scoring_us": self._scoring.nanoseconds // 1000,
            "allocations": _allocations(self.loaded.device),
            **({} if self._reports is None else self._reports.stats()),
        }

    @torch.inference_mode()
    def expert_use(self) -> Mapping[int, tuple[int, ...]]:
        """By layer, how often rows have chosen each expert, up to now; waits for the device. Empty
        if all experts are on the device or nothing counts."""
        if self._reports is None:
            return {}
        self._reports.refresh()
        return self._reports.uses

    @property
    def expert_use_is_old(self) -> bool:
        """Whether steps were launched since the counters of experts were last sent to the host."""
        return self._reports is not None and self._reports.old

    def take_expert_use(self) -> tuple[ExpertUse, ExpertResidency] | None:
        """What rows chose since the last call; ``None`` if no counters have come since."""
        return None if self._reports is None else self._reports.take()

    def check_integrity(self) -> None:
        """Check the state, and that the experts in bays equal their homes. No step may run. Raises
        :class:`StateError`."""
        self.state.check_integrity()
        if self.loaded.experts is not None:
            self.loaded.experts.check_integrity()

    @property
    def draft_failures(self) -> int:
        """Drafts of a drafter with weights that failed."""
        drafting = self.executor.drafting
        return 0 if drafting is None else drafting.failures

    @torch.inference_mode()
    def warm_up(
        self, limits: SchedulerLimits, progress: Progress, stop: Callable[[], bool]
    ) -> None:
        """Compile and capture the steps that ``limits`` make likely, until ``stop`` is true.
        ``progress`` is called after each. No step may be pending."""
        with self._on_device(), self._invalidated_by_errors():
            for done in self.executor.warm_up(limits):
                progress(*done)
                if stop():
                    return

    def run(self, plan: StepPlan, histories: Mapping[str, History]) -> StepResult:
        """Launch and collect a step."""
        return self.collect(self.launch(plan, histories))

    @torch.inference_mode()
    def launch(
        self, plan: StepPlan, histories: Mapping[str, History], after: PendingStep | None = None
    ) -> PendingStep:
        """Launch a step on the device. ``after``: the step that chooses its tokens, if it is not
        collected yet (overlap)."""
        tokens = None if after is None else after.next_tokens
        launched = perf_counter()
        with self._on_device(), self._invalidated_by_errors():
            self.state.apply(plan.operations, step_follows=bool(plan.items))
            for swap in plan.swaps:
                self._swap(swap)
            results: list[ItemResult] = []
            pending: PendingItems | None = None
            scores: Sequence[PendingScores] = ()
            if plan.items:
                *others, (last, bucket) = self._parts(plan)
                for part in others:
                    results += self._collect(self._launch(ScheduledBatch(*part, histories))[0])
                batch = ScheduledBatch(last, bucket, histories, tokens)
                pending, scores = self._launch(batch, plan.scores)
            # Behind the copy of the outputs: the device reads on while the host plans.
            readings = self._readers.launch(plan.readings)
            self.state.launch_saves()
            return PendingStep(plan, results, pending, launched, scores, readings)

    @torch.inference_mode()
    def collect(self, step: PendingStep) -> StepResult:
        """Wait for a launched step. An item whose numbers are not finite fails alone."""
        with self._on_device(), self._invalidated_by_errors():
            last = [] if step.last is None else self._collect(step.last)
            results = [*step.results, *last]
        self._count(step.plan)
        now = perf_counter()
        seconds, self._collected = now - max(step.launched, self._collected), now
        captures, self._captures = self._captures, self.executor.counters.captures
        if captures != self._captures:
            seconds = 0.0
        arrived = self.state.take_arrived()
        scores = self._scoring.collect(step.scores)
        readings = tuple(each.collect() for each in step.readings)
        return StepResult(step.plan.step_id, tuple(results), seconds, arrived, scores, readings)

    @torch.inference_mode()
    def apply(self, operations: Sequence[StateOperation]) -> None:
        """Carry out operations while no step does."""
        with self._on_device(), self._invalidated_by_errors():
            self.state.apply(operations)

    def take_arrived(self) -> tuple[int, ...]:
        """Identities whose bytes have come to host memory, for those who wait without a step."""
        return self.state.take_arrived()

    def forget_state(self) -> None:
        """The scheduler has given up all sequences and checkpoints: nothing of them is left."""
        self.state.forget()
        self.executor.invalidate()
        self._readers.forget()
        self._restore_experts()

    def _launch(
        self, batch: ScheduledBatch, scores: Sequence[ScoreRequest] = ()
    ) -> tuple[PendingItems, Sequence[PendingScores]]:
        outputs = self.executor.launch(batch)
        # Before the copy, so that the wait for it is the wait for the scores too.
        pending = self._scoring.launch(scores)
        reported = self._reports is not None and self._reports.launch()
        copy = self._reader.send(outputs)
        # Behind the copy: the host reads the outputs and plans while the draft runs.
        lanes = batch.lanes
        proposed = self.executor.draft(lanes) if lanes else 0
        return PendingItems(batch, outputs, copy, proposed, reported), pending

    def _swap(self, swap: ExpertSwap) -> None:
        experts = self.loaded.experts
        if experts is None:
            raise EngineError(f"all experts are on the device: {swap} has nothing to swap")
        experts.layers[swap.layer].swap(swap.expert, swap.bay)

    @torch.inference_mode()
    def _restore_experts(self) -> None:
        """A step that failed may have copied a part of an expert."""
        experts = self.loaded.experts
        if experts is None:
            return
        try:
            with self._on_device():
                experts.restore()
        except RuntimeError:
            # The device itself has failed: so will every step.
            log.exception("the experts on the device cannot be copied again")

    def _collect(self, pending: PendingItems) -> list[ItemResult]:
        outputs = self._reader.receive(pending.copy)
        if pending.reported and self._reports is not None:
            self._reports.receive()
        found = item_results(pending.batch, outputs, pending.outputs.logprobs)
        if not pending.proposed:
            return found
        chances = self._confidence(pending.batch.lanes)
        return [
            replace(result, proposed=pending.proposed, confidence=chances.get(item.lease.slot, ()))
            if item.propose != "off" and result.error is None
            else result
            for item, result in zip(pending.batch.items, found, strict=True)
        ]

    def _confidence(self, lanes: Sequence[Lane]) -> Mapping[int, tuple[float, ...]]:
        """By slot, the chances of what was proposed, if they are kept; this waits for the draft."""
        drafting = self.executor.drafting
        if drafting is None or not drafting.loaded.confidence:
            return {}
        self._reader.waits += 1
        slots = [lane.slot for lane in lanes]
        return dict(zip(slots, map(tuple, drafting.confidence(slots)), strict=True))

    def _parts(self, plan: StepPlan) -> Sequence[tuple[Sequence[Item], Bucket | None]]:
        """Groups of items that run together, and the buckets of their captured steps: one group if
        a captured step has room for all. With --batch-invariant, slices run alone."""
        most, buckets = self._max_sequences, self._buckets
        if most is None:
            return [(plan.items, None)] if buckets is None else buckets.parts(plan.items)
        decoding = [item for item in plan.items if not item.of_prompt]
        groups = [decoding[start : start + most] for start in range(0, len(decoding), most)]
        groups += ([i] for i in plan.items if i.of_prompt)
        return [(group, None if buckets is None else buckets.smallest(group)) for group in groups]

    @contextmanager
    def _invalidated_by_errors(self) -> Iterator[None]:
        """After an exception, tell the executor that the device's memory is unknown."""
        try:
            yield
        except BaseException:
            self.state.block_tables.invalidate()
            self.executor.invalidate()
            raise

    def _on_device(self) -> AbstractContextManager[object]:
        """Make the model's device current: kernels launch there, wherever their tensors are."""
        device = self.loaded.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _count(self, plan: StepPlan) -> None:
        prefill = [item for item in plan.items if item.of_prompt]
        self._counters["steps"] += 1
        self._counters["rows"] += plan.rows
        self._counters["prefill_rows"] += sum(item.rows for item in prefill)
        self._counters["decode_steps"] += len(prefill) < len(plan.items)


def uncapturable_ops(loaded: LoadedModel) -> Mapping[str, str]:
    """Ops that no CUDA graph can hold, with the reason; empty on devices without graphs."""
    return loaded.ops.uncapturable() if loaded.device.type == "cuda" else {}


def _allocations(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("segment.all.allocated", 0))

"""Runs one step of a model: state operations, forward, verification, commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from kinfolk.engine.batch import lay_out
from kinfolk.engine.capture import capture_for
from kinfolk.engine.graphs import SEQUENCES, DeviceOutputs, Graphs
from kinfolk.engine.history import History
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.sampled import SampledItems
from kinfolk.engine.step import OutputReader, PendingCopy, StepOutputs, report, sample_and_commit
from kinfolk.errors import EngineError
from kinfolk.model_api import Forward, GraphShape, StepBatch, StepFn
from kinfolk.sched.plan import Item, ItemKind, ItemResult, StepPlan, StepResult, TokenLogprob
from kinfolk.spec.sampling import RowSampling, kind_of
from kinfolk.state.state import State

MAX_WARMUP_SIZE_LOG2 = 7
"""Two to this power rows are many: prompts of that length and more are alike to kernels."""

COMPANY = {"cpu": 1, "cuda": SEQUENCES[-1]}
"""Sequences that may share a decoding step where numbers must not depend on company. Kernels of a
GPU compute all rows of a step alike. What libraries of a CPU do to a row depends on its place:
vector units leave the end of a tensor to other code, and a product's edges are computed otherwise.
"""

_NOT_FINITE = "the model returned numbers that are not finite"


@dataclass(frozen=True, slots=True)
class PendingItems:
    """Items whose report is on its way, those of them that are sampled, and what it tells of."""

    items: Sequence[Item]
    sampled: SampledItems
    ran: DeviceOutputs
    reading: PendingCopy
    sequences: int
    lanes: int


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that the device is at: results that are there, and the last of it."""

    plan: StepPlan
    results: Sequence[ItemResult]
    last: PendingItems

    @property
    def chosen(self) -> torch.Tensor | None:
        """The tokens that a recorded step of single rows will have chosen, int64 on the device, in
        the order of its items; no other step can be followed before it is finished, nor one in
        which something has failed."""
        ran, count = self.last.ran, len(self.last.items)
        if (
            self.results
            or not ran.lanes
            or self.last.sampled.errors
            or any(x.kind is not ItemKind.DECODE for x in self.plan.items)
        ):
            return None
        first = ran.sequences + 2 * ran.lanes
        return ran.packed[first : first + count]


class Runner:
    """Executes plans on one model and its state. Counts what it does in ``counters``."""

    def __init__(self, loaded: LoadedModel, state: State) -> None:
        self.loaded = loaded
        self.state = state
        self.kernel_warmup = KernelWarmup(loaded.ops, loaded.device)
        self._company = COMPANY[loaded.device.type] if loaded.batch_invariant else None
        self.graphs = Graphs(
            loaded,
            state,
            capture_for(loaded.device),
            self.kernel_warmup,
            least=min(state.limits.slots, self._company or 1),
        )
        self._reports = OutputReader(loaded.device)
        self._overruled = loaded.hooks.is_overruled("verify")
        self._counters = {"steps": 0, "rows": 0, "decode_steps": 0, "prefill_rows": 0}
        self._eager_steps = self._eager_uploads = 0
        self._steps: dict[GraphShape, StepFn] = {}

    @property
    def counters(self) -> dict[str, int]:
        """Since the start. ``allocations`` are those of the driver, which memory that is used again
        does not need."""
        return {
            **self._counters,
            "captures": self.graphs.captures,
            "replays": self.graphs.replays,
            "eager_steps": self._eager_steps,
            "uploads": self.graphs.uploads + self._eager_uploads,
            "waits": self._reports.waits,
            "allocations": _allocations(self.loaded.device),
        }

    def run(self, plan: StepPlan, histories: Mapping[str, History]) -> StepResult:
        """Run a step to its end."""
        return self.finish(self.start(plan, histories))

    @torch.inference_mode()
    def start(
        self, plan: StepPlan, histories: Mapping[str, History], after: PendingStep | None = None
    ) -> PendingStep:
        """Give a step to the device. ``after``: the step that chooses its tokens, if that has been
        started and not been finished."""
        with self._on_device(), self._in_doubt():
            self.state.apply(plan.operations)
            results: list[ItemResult] = []
            *others, last = self._parts(plan)
            for items in others:
                results += self._receive(self._send(items, histories))
            return PendingStep(plan, results, self._send(last, histories, after))

    @torch.inference_mode()
    def finish(self, step: PendingStep) -> StepResult:
        """Wait for a step that was started. An item whose numbers are not finite fails alone."""
        with self._on_device(), self._in_doubt():
            results = [*step.results, *self._receive(step.last)]
        self._count(step.plan)
        return StepResult(step.plan.step_id, tuple(results))

    @contextmanager
    def _in_doubt(self) -> Iterator[None]:
        """What fails in here may have left anything on the device."""
        try:
            yield
        except BaseException:
            self.state.block_tables.invalidate()
            self.graphs.forget(range(self.state.limits.slots + 1))
            raise

    def _parts(self, plan: StepPlan) -> Sequence[Sequence[Item]]:
        """The items that run together: all, unless a row's numbers must not depend on others."""
        most = self._company
        if most is None:
            return [plan.items]
        decoding = [item for item in plan.items if item.kind is not ItemKind.PREFILL]
        groups = [decoding[start : start + most] for start in range(0, len(decoding), most)]
        return [*groups, *([i] for i in plan.items if i.kind is ItemKind.PREFILL)]

    def _send(
        self,
        items: Sequence[Item],
        histories: Mapping[str, History],
        after: PendingStep | None = None,
    ) -> PendingItems:
        sampled = SampledItems(items, histories)
        tokens = None if after is None else after.chosen
        ran = self._replay(items, sampled, tokens)
        if ran is None:
            if tokens is not None:
                raise EngineError("a step whose tokens the host does not know was not recorded")
            ran = self._eager(items)
        packed, counts = ran.packed, (ran.sequences, ran.lanes)
        if ran.forward is not None and ran.logits is not None and ran.real is not None:
            drafts = any(item.kind is ItemKind.VERIFY for item in items)
            packed = self._finish(ran, sampled, drafts=drafts)
            self.graphs.forget(item.lease.slot for item in sampled.items)
            counts = (len(ran.batch.last_row), len(ran.real.count))
        return PendingItems(items, sampled, ran, self._reports.send(packed), *counts)

    def _receive(self, sent: PendingItems) -> list[ItemResult]:
        found = self._reports.receive(sent.reading, sent.sequences, sent.lanes)
        return _results(sent.items, found, sent.ran.logits, sent.sampled)

    def _replay(
        self,
        items: Sequence[Item],
        sampled: SampledItems,
        tokens: torch.Tensor | None,
    ) -> DeviceOutputs | None:
        """The step from a recording, if there can be one. It ends at the logits where the rest
        cannot be recorded: policies that verify, probabilities to report, drafts whose logits are
        edited."""
        if not self.loaded.graphs:
            return None
        samplings = sampled.samplings
        drafted = any(item.kind is ItemKind.VERIFY for item in items)
        open_end = self._overruled or any(
            each.logprobs is not None or (drafted and each.is_edited) for each in samplings
        )
        key = self.graphs.key(items, None if open_end else kind_of(samplings))
        if key is not None:
            try:
                return self.graphs.run(key, items, sampled, tokens)
            except EngineError:
                if not self.graphs.refused:
                    raise
        if self.graphs.refused and self.loaded.batch_invariant:
            reasons = "; ".join(f"{what}: {why}" for what, why in self.graphs.refused.items())
            raise EngineError(f"--batch-invariant needs steps that can be recorded; {reasons}")
        return None

    def _eager(self, items: Sequence[Item]) -> DeviceOutputs:
        """The step in its own size, up to its logits."""
        self._eager_steps += 1
        self._eager_uploads += 1
        laid = lay_out(items, self.state)
        batch, step_fn = laid.batch, self._step_fn(items, laid.batch)

        def forward() -> tuple[Forward, torch.Tensor | None]:
            found = step_fn(batch, self.state)
            if not batch.logit_rows.shape[0]:
                return found, None
            return found, self.loaded.model.head(found.hidden[batch.logit_rows])

        # Kernels are made for numbers of rows, and for any number from some on.
        size = min((batch.rows - 1).bit_length(), MAX_WARMUP_SIZE_LOG2)
        kinds = frozenset(item.kind for item in items)
        self.kernel_warmup.before((size, kinds), forward)
        found, logits = forward()
        if logits is None:
            return DeviceOutputs(
                report(self.loaded, batch, found), len(items), 0, batch, None, None
            )
        return DeviceOutputs(found.hidden, 0, 0, batch, found, logits, laid.lanes)

    def _finish(self, ran: DeviceOutputs, sampled: SampledItems, *, drafts: bool) -> torch.Tensor:
        """What follows the logits, launch by launch."""
        assert ran.forward is not None
        assert ran.logits is not None
        assert ran.real is not None
        self._eager_uploads += 1
        parameters, kind = sampled.parameters(), kind_of(sampled.samplings)
        rows = RowSampling.uploaded(
            parameters, sampled.entries(), kind, self.loaded.device, self.loaded.step_ops.sample
        )
        return sample_and_commit(
            self.loaded,
            self.state,
            ran.batch,
            ran.real,
            ran.forward,
            ran.logits[: len(parameters)],
            rows,
            drafts=drafts,
        )

    def _step_fn(self, items: Sequence[Item], batch: StepBatch) -> StepFn:
        kinds = {item.kind for item in items}
        kind = next(iter(kinds)).value if len(kinds) == 1 else "mixed"
        shape = GraphShape(kind, batch.rows, len(batch.segments))
        if shape not in self._steps:
            self._steps[shape] = self.loaded.hooks.build_graph(self.loaded.model, shape)
        return self._steps[shape]

    def _on_device(self) -> AbstractContextManager[object]:
        """Kernels are launched on the current device, whatever their tensors are on."""
        device = self.loaded.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _count(self, plan: StepPlan) -> None:
        prefill = [item for item in plan.items if item.kind is ItemKind.PREFILL]
        self._counters["steps"] += 1
        self._counters["rows"] += plan.rows
        self._counters["prefill_rows"] += sum(len(item.tokens) for item in prefill)
        self._counters["decode_steps"] += len(prefill) < len(plan.items)


def _allocations(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("segment.all.allocated", 0))


def _results(
    items: Sequence[Item], found: StepOutputs, logits: torch.Tensor | None, sampled: SampledItems
) -> list[ItemResult]:
    """What became of each item; lanes are those of the sampled ones, in order."""
    results, lane, first = [], 0, 0
    samplings = sampled.samplings
    for number, item in enumerate(items):
        drafted = item.kind is ItemKind.VERIFY
        if not (drafted or item.sample):
            results.append(_result(item) if found.sound[number] else _failed(item))
            continue
        rows = len(item.tokens) if drafted else 1
        result = None
        if found.finite[lane] and lane not in sampled.errors:
            try:
                wanted = samplings[lane].logprobs
                result = _sampled(item, found, lane, rows, logits, first, wanted)
            except Exception as error:
                sampled.fail(lane, error)
        results.append(result or _failed(item, sampled.errors.get(lane, _NOT_FINITE)))
        lane += 1
        first += rows
    return results


def _sampled(
    item: Item,
    found: StepOutputs,
    lane: int,
    rows: int,
    logits: torch.Tensor | None,
    first: int,
    wanted: int | None,
) -> ItemResult:
    kept = found.path[lane][: found.n_keep[lane]]
    drafts = item.tokens[-rows:]
    emitted = (*(drafts[row] for row in kept[1:]), found.next[lane])
    logprobs: tuple[TokenLogprob, ...] = ()
    if wanted is not None:
        assert logits is not None
        logprobs = _logprobs(logits[first : first + rows][kept], emitted, wanted)
    return ItemResult(
        item.lease,
        item.request_id,
        kept=len(kept) if item.kind is ItemKind.VERIFY else len(item.tokens),
        emitted=emitted,
        logprobs=logprobs,
    )


def _result(item: Item) -> ItemResult:
    """All rows are kept and nothing was asked for."""
    return ItemResult(item.lease, item.request_id, len(item.tokens))


def _failed(item: Item, error: str = _NOT_FINITE) -> ItemResult:
    return ItemResult(item.lease, item.request_id, 0, error=error)


def _logprobs(
    logits: torch.Tensor, tokens: tuple[int, ...], count: int
) -> tuple[TokenLogprob, ...]:
    logprobs = logits.log_softmax(1)
    best = logprobs.topk(min(count, logprobs.shape[1]), 1) if count else None
    found = []
    for row, token in enumerate(tokens):
        top = (
            ()
            if best is None
            else tuple(zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True))
        )
        found.append(TokenLogprob(token, float(logprobs[row, token]), top))
    return tuple(found)

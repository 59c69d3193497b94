"""Runs one step of a model: state operations, forward, verification, commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kinfolk.engine.batch import build_batch, build_lanes, commit_tree_rows
from kinfolk.engine.history import History
from kinfolk.engine.loading import LoadedModel
from kinfolk.model_api import GraphShape, StepBatch, StepFn
from kinfolk.sched.plan import Item, ItemKind, ItemResult, StepPlan, StepResult, TokenLogprob
from kinfolk.spec.sampling import RowSampling
from kinfolk.spec.verify import NO_ROW, Draft, Kept, VerifyStep
from kinfolk.state.state import State

_NOT_FINITE = "the model returned numbers that are not finite"


@dataclass(frozen=True, slots=True)
class _Lane:
    """A sampled item: ``first`` of ``rows`` rows of logits."""

    item: Item
    first: int
    rows: int


class Runner:
    """Executes plans on one model and its state. Counts what it does in ``counters``."""

    def __init__(self, loaded: LoadedModel, state: State) -> None:
        self.loaded = loaded
        self.state = state
        self.counters = {"steps": 0, "rows": 0, "decode_steps": 0, "prefill_rows": 0}
        self._steps: dict[GraphShape, StepFn] = {}

    @torch.inference_mode()
    def run(self, plan: StepPlan, histories: Mapping[str, History]) -> StepResult:
        """Run a step. An item whose numbers are not finite fails alone."""
        self.state.apply(plan.operations)
        batch = build_batch(plan.items, self.state)
        self._count(plan)
        forward = self._step_fn(plan, batch)(batch, self.state)
        # A slice that asks for no logits may yet spoil what is kept of it.
        sound = forward.hidden[batch.last_row].isfinite().all(1).tolist()
        results = [
            _result(item) if finite else _failed(item)
            for item, finite in zip(plan.items, sound, strict=True)
        ]
        lanes = _lanes(plan)
        if not lanes:
            return StepResult(plan.step_id, tuple(results))
        logits = self.loaded.model.head(forward.hidden[batch.logit_rows])
        kept = self._verify(lanes, logits, histories)
        drafted = build_lanes(plan.items, batch, self.state)
        if drafted is not None:
            rows = torch.tensor(
                [i for i, lane in enumerate(lanes) if lane.item.kind is ItemKind.VERIFY],
                device=self.loaded.device,
            )
            path, n_keep = kept.path[rows][:, : drafted.rows.shape[1]], kept.n_keep[rows]
            commit = drafted.commit_batch(path, n_keep)
            self.loaded.model.commit(forward.trace, commit, self.state)
            commit_tree_rows(self.state, drafted, path)
        sampled = self._sampled(lanes, logits, kept, histories)
        return StepResult(
            plan.step_id, tuple(sampled.get(result.request_id, result) for result in results)
        )

    def _step_fn(self, plan: StepPlan, batch: StepBatch) -> StepFn:
        kinds = {item.kind for item in plan.items}
        kind = next(iter(kinds)).value if len(kinds) == 1 else "mixed"
        shape = GraphShape(kind, batch.rows, len(batch.segments))
        if shape not in self._steps:
            self._steps[shape] = self.loaded.hooks.build_graph(self.loaded.model, shape)
        return self._steps[shape]

    def _verify(
        self, lanes: list[_Lane], logits: torch.Tensor, histories: Mapping[str, History]
    ) -> Kept:
        device = self.loaded.device
        width = max(lane.rows for lane in lanes)
        contexts = [
            row for lane in lanes for row in histories[lane.item.request_id].rows(lane.item)
        ]

        def padded(values: list[list[int]], fill: int) -> torch.Tensor:
            return torch.tensor(
                [row + [fill] * (width - len(row)) for row in values], device=device
            )

        rows = padded([list(range(lane.first, lane.first + lane.rows)) for lane in lanes], -1)
        tokens = padded([list(lane.item.tokens[-lane.rows :]) for lane in lanes], 0)
        parents = padded([_parents(lane) for lane in lanes], NO_ROW)
        budget = torch.tensor([lane.item.budget for lane in lanes], device=device)
        kept: Kept = self.loaded.hooks.verify(
            VerifyStep(logits, rows),
            Draft(tokens, parents, budget),
            RowSampling.of(contexts, device),
        )
        return kept

    def _sampled(
        self,
        lanes: list[_Lane],
        logits: torch.Tensor,
        kept: Kept,
        histories: Mapping[str, History],
    ) -> dict[str, ItemResult]:
        """Results of the sampled items by request."""
        finite = logits.isfinite().all(1).tolist()
        paths, chosen = kept.path.tolist(), kept.next.tolist()
        found: dict[str, ItemResult] = {}
        for lane, path, following in zip(lanes, paths, chosen, strict=True):
            item, rows = lane.item, [row for row in path if row >= 0]
            if not all(finite[lane.first : lane.first + lane.rows]):
                found[item.request_id] = _failed(item)
                continue
            drafts = item.tokens[-lane.rows :]
            emitted = (*(drafts[row] for row in rows[1:]), following)
            wanted = histories[item.request_id].sampling.logprobs
            found[item.request_id] = ItemResult(
                item.lease,
                item.request_id,
                kept=len(rows) if item.kind is ItemKind.VERIFY else len(item.tokens),
                emitted=emitted,
                logprobs=()
                if wanted is None
                else _logprobs(logits[[lane.first + row for row in rows]], emitted, wanted),
            )
        return found

    def _count(self, plan: StepPlan) -> None:
        self.counters["steps"] += 1
        self.counters["rows"] += plan.rows
        prefill = [item for item in plan.items if item.kind is ItemKind.PREFILL]
        self.counters["prefill_rows"] += sum(len(item.tokens) for item in prefill)
        self.counters["decode_steps"] += len(prefill) < len(plan.items)


def _lanes(plan: StepPlan) -> list[_Lane]:
    lanes: list[_Lane] = []
    first = 0
    for item in plan.items:
        if item.kind is ItemKind.VERIFY or item.sample:
            rows = len(item.tokens) if item.kind is ItemKind.VERIFY else 1
            lanes.append(_Lane(item, first, rows))
            first += rows
    return lanes


def _parents(lane: _Lane) -> list[int]:
    if lane.item.parents is not None:
        return list(lane.item.parents)
    return list(range(-1, lane.rows - 1))


def _result(item: Item) -> ItemResult:
    """All rows are kept and nothing was asked for."""
    return ItemResult(item.lease, item.request_id, len(item.tokens))


def _failed(item: Item) -> ItemResult:
    return ItemResult(item.lease, item.request_id, 0, error=_NOT_FINITE)


def _logprobs(
    logits: torch.Tensor, tokens: tuple[int, ...], count: int
) -> tuple[TokenLogprob, ...]:
    logprobs = logits.log_softmax(1)
    best = logprobs.topk(count, 1) if count else None
    found = []
    for row, token in enumerate(tokens):
        top = (
            ()
            if best is None
            else tuple(zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True))
        )
        found.append(TokenLogprob(token, float(logprobs[row, token]), top))
    return tuple(found)

"""Checks that a step's result fits its plan, before any part of it is applied."""

from __future__ import annotations

from kinfolk.errors import EngineError
from kinfolk.sched.plan import Item, ItemKind, ItemResult, StepPlan, StepResult


def match_results(plan: StepPlan, result: StepResult) -> list[ItemResult]:
    """The results in the order of the plan's items.

    Raises :class:`EngineError` unless every item has exactly one result that fits it.
    """
    pairs = zip(plan.items, result.results, strict=False)
    if len(result.results) == len(plan.items) and all(
        outcome.lease is item.lease and not _fault(item, outcome) for item, outcome in pairs
    ):
        return list(result.results)
    by_lease = {outcome.lease: outcome for outcome in result.results}
    if len(by_lease) != len(result.results) or len(by_lease) != len(plan.items):
        raise EngineError(
            f"step {plan.step_id}: {len(plan.items)} items were planned, the engine answered "
            f"{len(result.results)} times for {len(by_lease)} slots"
        )
    ordered = []
    for item in plan.items:
        outcome = by_lease.get(item.lease)
        fault = "has no result" if outcome is None else _fault(item, outcome)
        if outcome is None or fault:
            raise EngineError(
                f"step {plan.step_id}: the {item.kind.value} item of request {item.request_id!r} "
                f"in slot {item.lease.slot} {fault}"
            )
        ordered.append(outcome)
    return ordered


def _fault(item: Item, outcome: ItemResult) -> str:
    """What is wrong with a result, empty if nothing is."""
    if outcome.request_id != item.request_id:
        return f"was answered for request {outcome.request_id!r}"
    if outcome.error is not None:
        return ""
    kept, emitted, rows = outcome.kept, len(outcome.emitted), item.rows
    if outcome.logprobs and len(outcome.logprobs) != emitted:
        return f"has {len(outcome.logprobs)} log-probabilities for {emitted} tokens"
    if item.kind is ItemKind.PREFILL:
        if kept != rows:
            return f"kept {kept} of {rows} rows: a slice is kept whole"
        if emitted != int(item.sample):
            return f"emitted {emitted} tokens, {int(item.sample)} asked for"
        return ""
    if item.kind is ItemKind.PREVIEW:
        return (
            f"kept {kept} rows of a preview and emitted {emitted} tokens" if kept + emitted else ""
        )
    if not 1 <= kept <= min(rows, item.budget):
        return f"kept {kept} rows of {rows} with a budget of {item.budget}"
    if emitted != kept:
        return f"emitted {emitted} tokens for {kept} kept rows"
    if item.parents is None and not item.proposed and outcome.emitted[:-1] != item.tokens[1:kept]:
        return "kept rows whose tokens it did not emit"
    return ""

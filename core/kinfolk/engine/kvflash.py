"""``--kvflash``: the budget of sequences on the device, and host memory for what leaves it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from kinfolk.engine.core_scorer import ChooseScorer, CoreScorer, ReadingScorer, no_scorer
from kinfolk.engine.memory import MemoryPlan
from kinfolk.engine.sizing import DEFAULT_CONTEXT, GIB, LEAST_CONTEXT
from kinfolk.errors import CapacityError
from kinfolk.hooks import ModelHookCaller
from kinfolk.plans import PoolRule, StateLimits, StatePlan
from kinfolk.residency.rules import ResidencyRules, least_chunks
from kinfolk.settings import Settings
from kinfolk.state.geometry import chunks_for
from kinfolk.state.host_rows import SLAB_BYTES, HostLayout
from kinfolk.types import CHUNK_POSITIONS

log = logging.getLogger(__name__)

PAGED_SHARE = 0.5
"""Part of the host's free memory that chunks may use by default."""


class Divide(Protocol):
    """Divides memory for limits and bytes of host memory for chunks. A context that is ``asked``
    for is not lowered. Raises :class:`CapacityError`."""

    def __call__(
        self, *, wanted: StateLimits, paged: int, asked: int | None = ...
    ) -> MemoryPlan: ...


def plan_residency(
    settings: Settings,
    plan: StatePlan,
    wanted: StateLimits,
    hooks: ModelHookCaller,
    divide: Divide,
    host_free: int,
    choose: ChooseScorer = no_scorer,
) -> tuple[MemoryPlan, ResidencyRules | None]:
    """Divide memory, with a budget for sequences that are longer if the settings ask for one.
    ``choose`` says who scores their chunks if no policy does.

    Says so where a budget would change nothing. Raises :class:`CapacityError` or
    :class:`SettingsError` with the arithmetic.
    """
    if settings.kvflash == "off":
        return divide(wanted=wanted, paged=0), None
    if None not in plan.windows:
        log.warning("--kvflash is off: no layer of the model sees all positions")
        return divide(wanted=wanted, paged=0), None
    rule = hooks.map_slots(plan, wanted).rules[plan.windows.index(None)]
    context = min(settings.context or DEFAULT_CONTEXT, wanted.context)
    core = choose(rule)
    memory, rules = _first_that_fits(
        settings, plan, wanted, hooks, divide, host_free, rule, context, core
    )
    positions = min(context, memory.limits.context)
    if rules.chunks >= chunks_for(positions):
        log.warning(
            "--kvflash is off: a budget of %d tokens is not less than the context of %d",
            *(rules.chunks * CHUNK_POSITIONS, positions),
        )
        return divide(wanted=wanted, paged=0), None
    log.info("%s", describe(rules, memory))
    return memory, rules


def describe(rules: ResidencyRules, memory: MemoryPlan) -> str:
    """What a budget means, in a line."""
    who = ", ".join(rules.scorers)
    kept = f"chunks are chosen by {who}" if who else "its first and its last chunks are kept"
    return (
        f"--kvflash: {rules.chunks * CHUNK_POSITIONS} tokens of a longer sequence are on the "
        f"device, the others in up to {memory.paged / GIB:.2f} GiB of host memory; {kept}. "
        "Answers of such sequences are not exact"
    )


def _rules(
    settings: Settings,
    hooks: ModelHookCaller,
    rule: PoolRule,
    chunks: int,
    core: CoreScorer | ReadingScorer | None,
) -> ResidencyRules:
    return ResidencyRules(
        chunks,
        sink=rule.sink,
        tail=rule.tail,
        burst=settings.kvflash_burst,
        tau=settings.kvflash_tau,
        scorers=(*hooks.asked("score_chunks"), *(() if core is None else (core.name,))),
        previews=core is not None and core.previews,
        drafter=core.file_hash if isinstance(core, ReadingScorer) else "",
    )


def _budgets(settings: Settings, rule: PoolRule) -> tuple[int, ...]:
    """Chunks of the budgets that may be taken, the largest first."""
    if settings.kvflash != "auto":
        return (int(settings.kvflash) // CHUNK_POSITIONS,)
    least = least_chunks(rule.sink, rule.tail, settings.kvflash_burst)
    chunks = max(least, settings.kvflash_most // CHUNK_POSITIONS)
    budgets = [chunks]
    while chunks > least:
        chunks = max(least, chunks // 2)
        budgets.append(chunks)
    return tuple(budgets)


def _contexts(settings: Settings, context: int, fewest: int) -> Iterator[int]:
    """The context, and if it is a default, its halves that are more than ``fewest`` chunks."""
    yield context
    while settings.context is None and context > LEAST_CONTEXT:
        context //= 2
        if chunks_for(context) <= fewest:
            return
        yield context


def _first_that_fits(
    settings: Settings,
    plan: StatePlan,
    wanted: StateLimits,
    hooks: ModelHookCaller,
    divide: Divide,
    host_free: int,
    rule: PoolRule,
    context: int,
    core: CoreScorer | ReadingScorer | None,
) -> tuple[MemoryPlan, ResidencyRules]:
    """The largest budget that fits with all of the context. A default context is lowered only if no
    budget fits, and never to one that a budget holds as a whole."""
    budgets = _budgets(settings, rule)
    problem: CapacityError | None = None
    for length in _contexts(settings, context, budgets[-1]):
        for chunks in budgets:
            if length < context and chunks >= chunks_for(length):
                continue
            rules = _rules(settings, hooks, rule, chunks, core)
            try:
                return _divided(settings, plan, wanted, divide, host_free, rules, length, core)
            except CapacityError as error:
                problem = error if length == context else problem
    assert problem is not None
    if settings.kvflash != "auto":
        raise problem
    raise CapacityError(
        f"--kvflash auto: not even the smallest budget of {budgets[-1] * CHUNK_POSITIONS} "
        f"tokens fits ({rule.sink} chunks at the start, {rule.tail} at the end, "
        f"{settings.kvflash_burst} to exchange, 2 for a slice and a step): {problem}"
    )


def _divided(
    settings: Settings,
    plan: StatePlan,
    wanted: StateLimits,
    divide: Divide,
    host_free: int,
    rules: ResidencyRules,
    context: int,
    core: CoreScorer | ReadingScorer | None,
) -> tuple[MemoryPlan, ResidencyRules]:
    scored = None if core is None else core.scored(rules.chunks, context)
    if scored is not None:
        rules = replace(rules, layers=tuple(scored.layers))
    limits = replace(wanted, resident=rules.chunks, scored=scored)
    paged = _host_bytes(settings, plan, wanted.slots, host_free, context)
    return divide(wanted=limits, paged=paged, asked=context), rules


def _host_bytes(
    settings: Settings, plan: StatePlan, slots: int, host_free: int, context: int
) -> int:
    """Bytes of host memory for chunks, in whole slabs: what was asked for, or enough for all slots
    as far as half of what is free allows. One sequence must have room."""
    layout = HostLayout.of(plan)
    row = layout.block_pages[plan.windows.index(None)] * layout.page_bytes
    one = chunks_for(context) * row
    asked = settings.kvflash_host
    most = int(host_free * PAGED_SHARE) if asked is None else int(asked * GIB)
    if most < one:
        where = "half of what is free" if asked is None else "--kvflash-host"
        raise CapacityError(
            f"--kvflash needs host memory for all chunks of a sequence: a context of {context} is "
            f"{chunks_for(context)} chunks of {row} bytes = {one / GIB:.3f} GiB, {where} is "
            f"{most / GIB:.3f} GiB: lower --context, or set --kvflash-host"
        )
    if most > host_free:
        raise CapacityError(
            f"--kvflash-host asks for {most / GIB:.2f} GiB, the host has {host_free / GIB:.2f} GiB "
            "free"
        )
    wanted = min(most, one * slots) if asked is None else most
    return -(-wanted // SLAB_BYTES) * SLAB_BYTES

"""Any interleaving of requests, cancels, faults and steps, compared with solo runs.

The machine covers exclusivity, epochs, equivalence, prefixes of cancelled streams, the single
terminal event, budgets, progress, leaks, rollback, idempotent cancels, atomicity and admission.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kinfolk.errors import EngineError, RequestError
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind, ItemResult, StepPlan, StepResult
from kinfolk.sched.request import FinishReason, Request, Status
from kinfolk.types import CHUNK_POSITIONS

BASES = [[(seed * 7 + i * i) % 29 for i in range(400)] for seed in (1, 2)]
LAYOUTS = [
    ((None,), True),
    ((None,), False),
    ((None, 70), True),
    ((None, 70), False),
    ((100,), True),
    ((), True),
]


@st.composite
def scheduler_limits(draw):
    size = draw(st.sampled_from([1, 8, 16, 48, 64, 100]))
    return SchedulerLimits(
        slots=draw(st.integers(1, 4)),
        context=draw(st.sampled_from([96, 320, 320])),
        slice=size,
        mixed_slice=draw(st.sampled_from([None, 1, 8, 16])),
        step_tokens=size + draw(st.integers(1, 40)),
        step_sequences=draw(st.sampled_from([None, 1, 2])),
        quantum=draw(st.sampled_from([1, 2, 7, 1000])),
        max_draft=draw(st.sampled_from([0, 1, 5, 20])),
        prefill_share=draw(st.sampled_from([0.0, 0.25, 0.8])),
        checkpoint_every=draw(st.sampled_from([0, 0, 50, 64])),
        preempt=draw(st.booleans()),
        vocabulary=29,
    )


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self, world_type, rolling):
        super().__init__()
        self.world_type, self.rolling = world_type, rolling
        self.world = None
        self.cancelled = set()
        self.failed = set()
        self.number = 0
        self.old_results = []

    @initialize(
        limits=scheduler_limits(),
        layout=st.sampled_from(LAYOUTS),
        spare=st.sampled_from([None, 0, 1, 3, 6]),
        checkpoints=st.integers(0, 4),
        spare_slots=st.integers(0, 1),
        host_rows=st.sampled_from([None, 0, 3, 12]),
        quality=st.sampled_from([None, None, None, 0.0, 0.5, 0.9, 1.0]),
        seed=st.integers(0, 9),
    )
    def open(self, limits, layout, spare, checkpoints, spare_slots, host_rows, quality, seed):
        windows, recurrent = layout
        blocks = None
        if spare is not None:
            blocks = (limits.context // CHUNK_POSITIONS + 2 + spare,) * len(windows)
        self.world = self.world_type(
            limits,
            windows=windows,
            recurrent=recurrent,
            blocks=blocks,
            checkpoints=checkpoints,
            spare_slots=spare_slots,
            host_rows=host_rows,
            quality=quality,
            seed=seed,
        )

    # -- requests -------------------------------------------------------------------------

    @rule(
        base=st.sampled_from(BASES),
        shared=st.sampled_from([0, 21, 64, 65, 130, 190, 250]),
        own=st.lists(st.integers(0, 28), max_size=20),
        max_new=st.integers(1, 40),
        stop=st.frozensets(st.integers(0, 28), max_size=2),
        quantum=st.sampled_from([None, None, 1, 3]),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
        marks=st.lists(st.sampled_from([1, 20, 64, 100, 128, 130, 191]), max_size=3),
        keep=st.booleans(),
        draft=st.booleans(),
        grant=st.sampled_from([None, None, 1, 5]),
    )
    def submit(self, base, shared, own, marks, max_new, **options):
        prompt = (*base[:shared], *own)
        request = Request(
            str(self.number),
            prompt,
            max_new,
            checkpoints=tuple(mark for mark in marks if mark <= len(prompt)),
            **options,
        )
        self.number += 1
        fits = 0 < len(prompt) <= self.world.limits.context - max_new
        if fits and self.world.kv_cache.tables.fits_ever(len(prompt) + max_new):
            self.world.submit(request)
        else:
            with pytest.raises(RequestError, match=f"request '{request.id}'"):
                self.world.submit(request)

    @precondition(lambda self: self.world.finished)
    @rule(data=st.data(), max_new=st.integers(1, 20))
    def go_on(self, data, max_new):
        """A chat's next turn: the old prompt, its answer, and new tokens."""
        world = self.world
        old = data.draw(st.sampled_from(sorted(world.finished)))
        prompt = (*world.requests[old].prompt, *world.streams[old], 3)
        if len(prompt) + max_new > world.limits.context:
            return
        if world.kv_cache.tables.fits_ever(len(prompt) + max_new):
            world.submit(Request(str(self.number), prompt, max_new, keep=True))
            self.number += 1

    @rule(
        length=st.sampled_from([1, 2, 16, 63, 64, 65, 130]),
        followers=st.integers(1, 3),
        submitted=st.integers(0, 3),
        max_new=st.sampled_from([1, 9]),
        keep=st.booleans(),
        steps=st.integers(0, 2),
    )
    def submit_choices(self, length, followers, submitted, max_new, keep, steps):
        """Several answers to a prompt, of which not all may be asked for in the end, or some when
        the first one has begun."""
        if length + max_new > self.world.limits.context:
            return
        first = Request(
            str(self.number), tuple(BASES[0][:length]), max_new, keep=keep, followers=followers
        )
        if not self.world.kv_cache.tables.fits_ever(length + max_new):
            return
        self.world.submit(first)
        self.steps(steps)
        for _ in range(min(submitted, followers)):
            self.number += 1
            request = replace(first, id=str(self.number), follows=first.id, followers=0)
            self.world.submit(request)
        self.number += 1

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), times=st.integers(1, 2))
    def cancel(self, data, times):
        self.cancel_one(data.draw(st.sampled_from(sorted(self.world.requests))), times)

    @precondition(lambda self: self.world.scheduler.alive)
    @rule(data=st.data(), tokens=st.sampled_from([None, 1, 2, 9]))
    def grant(self, data, tokens):
        self.world.scheduler.grant(data.draw(st.sampled_from(self.alive())), tokens)

    @invariant()
    def nobody_exceeds_its_grant(self):
        if self.world is None:
            return
        for view in self.world.scheduler.view():
            assert view.left >= 0
            assert (view.status is Status.HELD) == (view.left == 0)

    @rule()
    def cancel_nobody(self):
        assert self.world.scheduler.cancel("nobody") == []

    # -- steps ----------------------------------------------------------------------------

    @rule(count=st.integers(1, 40))
    def steps(self, count):
        for _ in range(count):
            plan = self.plan()
            if plan is None:
                break
            self.commit(plan, self.world.engine.run(plan))

    @rule(data=st.data(), count=st.integers(1, 30), faulty=st.booleans())
    def steps_ahead(self, data, count, faulty):
        """Each step runs before the one before it is committed, as long as the scheduler lets it;
        then a request may fail, or be cancelled between two commits."""
        plan = result = None
        for _ in range(count):
            if plan is None:
                plan = self.plan()
                if plan is None:
                    return
                result = self.world.engine.run(plan)
            failing = frozenset()
            if faulty and data.draw(st.integers(0, 9)) == 0:
                failing = frozenset({plan.items[0].request_id})
            following = self.world.ahead(result, failing=failing)
            if following is None:
                self.commit(plan, result)
                plan = None
                continue
            if faulty and data.draw(st.integers(0, 9)) == 0:
                self.cancel_one(plan.items[-1].request_id, 1)
            self.world.take(self.world.scheduler.commit(result))
            self.failed |= failing - set(self.world.finished)
            plan, result = self.world.plans[-1], following
        if plan is not None:
            self.commit(plan, result)

    @rule(data=st.data(), submitted=st.booleans())
    def step_with_a_cancel_inside(self, data, submitted):
        plan = self.plan()
        if plan is None:
            return
        victims = data.draw(st.sets(st.sampled_from([item.request_id for item in plan.items])))
        early = data.draw(st.booleans())
        if early:
            for victim in sorted(victims):
                self.cancel_one(victim, 1)
        result = self.world.engine.run(plan)
        for victim in sorted(victims):
            self.cancel_one(victim, 1)
        if submitted and victims:
            # The id is free again: the old result must not reach its new owner.
            victim = min(victims)
            again = replace(self.world.requests[victim], max_new=1)
            self.world.scheduler.submit(again)
            self.commit(plan, result)
            assert self.world.scheduler.cancel(victim)[-1].usage.emitted == 0
        else:
            self.commit(plan, result)

    @rule(data=st.data())
    def step_with_an_item_error(self, data):
        plan = self.plan()
        if plan is None:
            return
        failing = data.draw(st.sampled_from([item.request_id for item in plan.items]))
        self.failed.add(failing)
        self.commit(plan, self.world.engine.run(plan, failing=frozenset({failing})))
        assert self.world.finished[failing].error

    @precondition(lambda self: len(self.world.finished) > 3)
    @rule()
    def step_that_is_lost(self):
        plan = self.plan()
        if plan is None:
            return
        preempted = {
            view.request_id
            for view in self.world.scheduler.view()
            if view.status is Status.PREEMPTED
        }
        with_slot = {request_id for request_id in self.alive() if self.has_slot(request_id)}
        self.failed |= with_slot | preempted
        self.world.lose(plan)
        assert self.world.scheduler.commit(StepResult(plan.step_id, ())) == []
        assert self.world.scheduler.running == 0
        assert len(self.world.prefixes) == 0

    @rule(data=st.data())
    def step_with_a_bad_result_first(self, data):
        plan = self.plan()
        if plan is None:
            return
        result = self.world.engine.run(plan)
        bad = data.draw(st.sampled_from(bad_results(plan, result)))
        before = self.toy()
        with pytest.raises(EngineError, match=f"step {plan.step_id}"):
            self.world.scheduler.commit(bad)
        assert self.toy() == before
        self.commit(plan, result)

    @precondition(lambda self: self.old_results)
    @rule(data=st.data(), planned=st.booleans())
    def old_result(self, data, planned):
        plan = self.plan() if planned else None
        before = self.toy()
        assert self.world.scheduler.commit(data.draw(st.sampled_from(self.old_results))) == []
        assert self.toy() == before
        if plan is not None:
            self.commit(plan, self.world.engine.run(plan))

    @precondition(lambda self: self.world.drafter is not None)
    @rule()
    def drafter_breaks(self):
        self.world.drafter.raises = not self.world.drafter.raises

    # -- invariants -----------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        plan = self.world.plan()
        if plan is not None:
            self.check_plan(plan)
            return plan
        states = {view.status for view in self.world.scheduler.view()}
        waiting = {Status.WAITING, Status.PREEMPTED}
        assert states <= {Status.HELD, *waiting}, "whoever is not held makes progress"
        assert Status.HELD in states or not states, "only who is held makes others wait"
        return plan

    def check_plan(self, plan):
        limits = self.world.limits
        left = {view.request_id: view.left for view in self.world.scheduler.view()}
        slots = [item.lease.slot for item in plan.items]
        assert plan.rows <= limits.step_tokens
        assert len(slots) == len(set(slots)) <= limits.slots
        decoding = [item for item in plan.items if item.kind is not ItemKind.PREFILL]
        assert len(decoding) <= (limits.step_sequences or limits.slots)
        for item in plan.items:
            request = self.world.requests[item.request_id]
            assert item.request_id not in self.world.finished
            known = (*request.prompt, *self.world.streams[request.id])
            stop = item.start + len(item.tokens)
            assert item.budget == left[item.request_id]
            assert item.budget <= request.max_new - len(self.world.streams[request.id])
            if item.kind is ItemKind.PREFILL:
                assert item.tokens == known[item.start : stop]
                ends = stop % limits.slice == 0 or stop == len(request.prompt)
                if short := limits.mixed_slice:
                    ends |= stop % short == 0
                    assert not decoding or item.start // short == (stop - 1) // short
                assert ends
                assert item.start // limits.slice == (stop - 1) // limits.slice
                assert item.sample == (stop == len(request.prompt))
            else:
                assert item.start == len(known) - 1
                assert item.tokens[0] == known[-1]
                assert len(item.tokens) <= min(limits.max_draft + 1, item.budget)
                assert (item.kind is ItemKind.VERIFY) == (len(item.tokens) > 1)

    def commit(self, plan, result):
        self.world.take(self.world.scheduler.commit(result))
        self.old_results = [*self.old_results[-3:], result]
        for item in plan.items:
            self.check_state(item)

    def check_state(self, item):
        """After a commit a slot holds what feeding only the kept tokens would have left."""
        world = self.world
        if item.request_id in world.finished or not world.recurrent:
            return
        known = [*world.requests[item.request_id].prompt, *world.streams[item.request_id]]
        computed = world.engine.states[item.lease.slot][0]
        assert world.kv_cache.tables.length(item.lease) == computed
        assert world.engine.states[item.lease.slot] == self.rolling(known[:computed])
        if world.streams[item.request_id]:
            assert computed == len(known) - 1

    @invariant()
    def streams_are_those_of_solo_runs(self):
        if self.world is None:
            return
        self.world.kv_cache.check_integrity()
        for request_id, stream in self.world.streams.items():
            request = self.world.requests[request_id]
            expected = self.world.expected(request)
            done = self.world.finished.get(request_id)
            if request_id not in self.cancelled | self.failed and done:
                assert stream == expected
                stopped = stream[-1] in request.stop
                assert done.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            assert stream == expected[: len(stream)]
            if done:
                self.check_usage(request, done.usage, stream)

    def check_usage(self, request, usage, stream):
        assert usage.prompt == len(request.prompt)
        assert usage.emitted == len(stream)
        assert 0 <= usage.reused < max(usage.prompt, 1)
        assert 0 <= usage.accepted <= usage.drafted
        assert usage.accepted <= max(0, len(stream) - 1)
        assert usage.drafted == 0 or request.draft
        if stream:
            assert usage.steps <= len(stream) - 1 <= usage.steps + usage.accepted

    def teardown(self):
        if self.world is not None:
            if self.world.drafter is not None:
                self.world.drafter.raises = False
            self.world.drain()
            self.streams_are_those_of_solo_runs()
            assert set(self.world.finished) == set(self.world.requests)
            self.world.check_idle()

    # -- helpers --------------------------------------------------------------------------

    def alive(self):
        return sorted(set(self.world.requests) - set(self.world.finished))

    def has_slot(self, request_id):
        """A request that was in a plan has a slot, and keeps it until the end."""
        return self.world.scheduler.alive[request_id].lease is not None

    def cancel_one(self, request_id, times):
        alive = request_id in self.alive()
        for _ in range(times):
            self.world.cancel(request_id)
        if alive:
            self.cancelled.add(request_id)
            assert self.world.finished[request_id].reason is FinishReason.CANCELLED

    def toy(self):
        """All state that a result could change, as text."""
        scheduler, kv_cache = self.world.scheduler, self.world.kv_cache
        return (
            repr(sorted(scheduler.alive.items())),
            repr(kv_cache.tables.sequences),
            repr(kv_cache.tables.operations),
            repr([(c.length, c.slot) for c in kv_cache.checkpoints.live]),
            sorted(key for key, _ in self.world.prefixes.items()),
        )


def bad_results(plan: StepPlan, result: StepResult) -> list[StepResult]:
    """The result with one thing wrong."""
    first, rest = result.results[0], result.results[1:]
    stranger = replace(first.lease, epoch=first.lease.epoch + 1)
    wrong: list[tuple[ItemResult, ...]] = [
        rest,
        (first, first, *rest),
        (replace(first, lease=stranger), *rest),
        (*result.results, replace(first, lease=stranger)),
        (replace(first, request_id="nobody"), *rest),
        (replace(first, kept=first.kept + 1), *rest),
        (replace(first, kept=0), *rest),
        (replace(first, emitted=(*first.emitted, 1)), *rest),
        (*rest, replace(first, kept=len(plan.items[0].tokens) + 1)),
    ]
    if first.emitted:
        wrong.append((replace(first, emitted=()), *rest))
    if len(first.emitted) > 1:
        other = (first.emitted[0] + 1, *first.emitted[1:])
        wrong.append((replace(first, emitted=other), *rest))
    return [StepResult(plan.step_id, results) for results in wrong]


def test_every_interleaving_gives_the_streams_of_solo_runs(toy):
    run_state_machine_as_test(
        partial(SchedulerMachine, toy.World, toy.rolling),
        settings=settings(
            max_examples=2 * settings.default.max_examples, stateful_step_count=40, deadline=None
        ),
    )

"""Texts that a second model scores: which slices of which text a step has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kinfolk.errors import QueueFull, RequestError
from kinfolk.plans import StateLimits
from kinfolk.sched.limits import SchedulerLimits, ScoringLimits
from kinfolk.sched.plan import (
    SCORER_MODEL,
    ItemKind,
    ItemResult,
    ReadingResult,
    StepResult,
)
from kinfolk.sched.prompt_scoring import PromptScoring, ScoringRequest
from kinfolk.sched.readings import Readings
from kinfolk.sched.request import Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import PrefixCache
from kinfolk.types import CHUNK_POSITIONS

CONTEXT, SLICE, LEAST = 320, 32, 8


def books(waiting=4):
    limits = StateLimits(1, 0, (CONTEXT // CHUNK_POSITIONS,), CONTEXT, SLICE)
    kv_cache = KVCacheManager((None,), limits, recurrent=True)
    return PromptScoring(ScoringLimits(CONTEXT, SLICE, LEAST, 1000, waiting), kv_cache)


def text(name, length):
    return ScoringRequest(name, tuple(range(1, length + 1)))


def scored(planned):
    scores = np.zeros(planned.length, np.float32) if planned.is_last else None
    return ReadingResult(planned.item.request_id, scores)


class ScoringMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.scoring = books()
        self.names = iter(range(10**6))
        self.waiting: list[ScoringRequest] = []
        self.read = 0
        self.outstanding = None
        self.gone = False

    @precondition(lambda self: len(self.waiting) < 4)
    @rule(length=st.integers(1, CONTEXT))
    def submit(self, length):
        request = text(str(next(self.names)), length)
        self.scoring.check(request)
        self.scoring.submit(request)
        self.waiting.append(request)

    @precondition(lambda self: self.outstanding is None)
    @rule()
    def plan(self):
        planned = self.scoring.plan()
        if not self.waiting:
            assert planned is None
            return
        request, item = self.waiting[0], planned.item
        assert (item.request_id, item.model, item.kind) == (
            request.id,
            SCORER_MODEL,
            ItemKind.PREFILL,
        )
        assert item.start == self.read
        assert item.tokens == request.tokens[self.read : self.read + item.rows]
        assert not item.sample
        assert 1 <= item.rows <= SLICE
        left = len(request.tokens) - self.read - item.rows
        assert left == 0 or left >= LEAST
        assert planned.is_last == (left == 0)
        assert self.scoring.plan() is None, "one slice at a time"
        self.outstanding, self.gone = planned, False

    @precondition(lambda self: self.outstanding is not None)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def commit(self, fails):
        planned, self.outstanding = self.outstanding, None
        name = planned.item.request_id
        self.scoring.commit(ReadingResult(name, error="broken") if fails else scored(planned))
        events = self.scoring.take_events()
        if self.gone:
            assert events == []
        elif fails:
            assert [(e.request_id, e.error) for e in events] == [(name, "broken")]
            self._first_has_gone()
        elif planned.is_last:
            assert [(e.request_id, len(e.scores)) for e in events] == [(name, planned.length)]
            self._first_has_gone()
        else:
            assert events == []
            self.read += planned.item.rows

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        number = data.draw(st.integers(0, len(self.waiting) - 1))
        name = self.waiting[number].id
        self.scoring.cancel(name)
        assert [event.request_id for event in self.scoring.take_events()] == [name]
        if number == 0:
            self._first_has_gone()
            self.gone = True
        else:
            del self.waiting[number]

    @rule()
    def cancel_another(self):
        self.scoring.cancel("nobody")
        assert self.scoring.take_events() == []

    @rule()
    def fail_all(self):
        self.scoring.fail_all("lost")
        assert [event.error for event in self.scoring.take_events()] == ["lost"] * len(self.waiting)
        self.waiting, self.read, self.outstanding = [], 0, None

    def _first_has_gone(self):
        del self.waiting[0]
        self.read = 0

    @invariant()
    def books_agree(self):
        assert self.scoring.busy == bool(self.waiting)
        self.scoring.kv_cache.check_integrity()


TestScoring = ScoringMachine.TestCase


def test_what_can_never_be_read_is_refused():
    scoring = books(waiting=1)
    with pytest.raises(RequestError, match=r"text of 321 tokens .* reads at most 320"):
        scoring.check(text("a", 321))
    with pytest.raises(RequestError, match="empty"):
        scoring.check(ScoringRequest("a", ()))
    # Ids are not folded into the vocabulary.
    with pytest.raises(RequestError, match=r"between 0 and 999, the prompt has 5..1000"):
        scoring.check(ScoringRequest("a", (5, 1000)))
    scoring.submit(text("a", 5))
    with pytest.raises(QueueFull, match="1 texts wait"):
        scoring.submit(text("b", 5))


def scheduler_with(scoring):
    limits = StateLimits(2, 0, (16,), 512, 64)
    kv_cache = KVCacheManager((None,), limits, recurrent=False)
    prefixes = PrefixCache(kv_cache.checkpoints, 0)
    settings = SchedulerLimits(slots=2, context=512, step_tokens=128, slice=64, max_draft=0)
    return Scheduler(settings, kv_cache, prefixes, readings=Readings(scoring))


def answered(plan):
    results = tuple(
        ItemResult(item.lease, item.request_id, item.rows, (7,) if item.sample else ())
        for item in plan.items
    )
    readings = tuple(map(scored, plan.readings))
    return StepResult(plan.step_id, results, readings=readings)


def test_requests_go_on_decoding_in_every_step_that_reads_a_slice():
    scoring = books()
    scheduler = scheduler_with(scoring)
    scheduler.submit(Request("a", (1, 2, 3), max_new=40))
    scheduler.commit(answered(scheduler.plan()))
    scoring.submit(text("t", 200))
    emitted, slices = 0, 0
    while scoring.busy:
        plan = scheduler.plan()
        (reading,) = plan.readings
        assert reading.item.model == SCORER_MODEL
        assert [item.kind for item in plan.items] == [ItemKind.DECODE]
        assert scheduler.plan_next() is None, "the step after it has the next slice"
        scheduler.commit(answered(plan))
        emitted, slices = emitted + 1, slices + 1
    assert slices == -(-200 // SLICE) == emitted
    (event,) = scoring.take_events()
    assert len(event.scores) == 200
    assert not scheduler.plan().readings


def test_a_step_may_read_and_do_nothing_else():
    scoring = books()
    scheduler = scheduler_with(scoring)
    scoring.submit(text("t", 40))
    assert not scheduler.idle
    for _ in range(2):
        plan = scheduler.plan()
        assert plan.items == ()
        scheduler.commit(answered(plan))
    assert scheduler.plan() is None
    assert scheduler.idle


def test_a_slice_that_fails_ends_its_text_and_no_request():
    scoring = books()
    scheduler = scheduler_with(scoring)
    scheduler.submit(Request("a", (1, 2, 3), max_new=40))
    scheduler.commit(answered(scheduler.plan()))
    scoring.submit(text("t", 200))
    plan = scheduler.plan()
    result = answered(plan)
    broken = StepResult(
        plan.step_id, result.results, readings=(ReadingResult("t", error="broken"),)
    )
    events = scheduler.commit(broken)
    assert [event.tokens for event in events] == [(7,)]
    assert [event.error for event in scoring.take_events()] == ["broken"]
    assert not scheduler.plan().readings
    assert scheduler.prefix_stats()["scoring_failures"] == 1


def test_a_lost_device_ends_texts_too():
    scoring = books()
    scheduler = scheduler_with(scoring)
    scoring.submit(text("t", 200))
    scheduler.plan()
    scheduler.fail_all("lost")
    assert [event.error for event in scoring.take_events()] == ["lost"]
    assert scheduler.idle
    scoring.kv_cache.check_integrity()

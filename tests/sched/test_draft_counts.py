"""Counts of drafts: what a request's end says of the rows that were drafted for it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import RequestError, RequestTypeError
from kinfolk.plans import StateLimits
from kinfolk.sched.draft_counts import NO_DRAFTS, DraftCounts, DraftTally
from kinfolk.sched.drafts import MAX_FAILURES
from kinfolk.sched.events import Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind, ItemResult, StepResult
from kinfolk.sched.request import FinishReason, Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import PrefixCache

PROPOSED = 6
STOP = 9


@pytest.fixture
def scheduler():
    """``scheduler(drafter, **limits)``: one with room for four sequences."""

    def make(drafter=None, **limits):
        values = {"slots": 4, "context": 400, "step_tokens": 64, "slice": 32, "max_draft": 0}
        values |= {"proposed_chain": PROPOSED, **limits}
        state = StateLimits(4, 0, (40,), 400, 64, tree_rows=64)
        kv_cache = KVCacheManager((None,), state, recurrent=True)
        return Scheduler(
            SchedulerLimits(**values), kv_cache, PrefixCache(kv_cache.checkpoints, 0), drafter
        )

    return make


def run(scheduler, script, *requests, stops=(), fails=()):
    """The usages of requests. ``script[id]`` are the drafted tokens that each of its drafting steps
    accepts, ``stops`` numbers of steps whose first token ends the request, ``fails`` numbers of
    steps behind which no draft succeeds. Steps count from 0 and are those that decode."""
    for request in requests:
        scheduler.submit(request)
    left = {name: list(accepted) for name, accepted in script.items()}
    usages, steps = {}, 0
    while (plan := scheduler.plan()) is not None:
        decodes = any(item.kind is not ItemKind.PREFILL for item in plan.items)
        results = []
        for item in plan.items:
            kept, emitted = item.rows, (7,) * int(item.sample)
            if item.kind is not ItemKind.PREFILL:
                accepted = left[item.request_id].pop(0) if item.kind is ItemKind.VERIFY else 0
                kept = accepted + 1
                emitted = (STOP if steps in stops else 7,) + (7,) * accepted
            proposed = PROPOSED * (item.propose != "off" and not (decodes and steps in fails))
            results.append(
                ItemResult(item.lease, item.request_id, kept, emitted, proposed=proposed)
            )
        for event in scheduler.commit(StepResult(plan.step_id, tuple(results))):
            if isinstance(event, Finished):
                usages[event.request_id] = event.usage
        steps += decodes
    assert not any(left.values()), "the script has more steps than there were"
    return usages


# -- the scheduler counts -------------------------------------------------------------------------


def test_chains_are_counted_by_position(scheduler):
    """14 tokens: the prompt's, then 5, 1, 4, and 3 of which the last two drafts are cut to what may
    still be emitted."""
    usage = run(scheduler(), {"a": [4, 0, 3, 2]}, Request("a", (1, 2), 14))["a"]
    assert (usage.emitted, usage.steps) == (14, 4)
    drafts = usage.drafts
    assert drafts == DraftCounts(
        mode="chain",
        steps=4,
        drafted=6 + 6 + 6 + 2,
        depth=20,
        emitted=5 + 1 + 4 + 3,
        reached=(4, 3, 2, 2, 1, 0),
        kept=(3, 3, 2, 1, 0, 0),
    )
    assert drafts.accepted == usage.accepted == 9
    assert usage.drafted == 20
    assert drafts.accept_length == 13 / 4
    assert drafts.accept_rate == 9 / 20
    assert drafts.per_position == (3 / 4, 3 / 4, 2 / 4, 1 / 4, 0, 0)


def test_trees_are_measured_by_their_depth(scheduler):
    """A tree of 6 rows, of which no more than 3 follow one another: accepting 3 is accepting all
    that can be accepted."""
    trees = scheduler(proposed_chain=0, proposed_tree=PROPOSED, proposed_depth=3)
    usage = run(trees, {"a": [3, 1, 3]}, Request("a", (1, 2), 12))["a"]
    assert usage.drafts == DraftCounts(
        mode="tree",
        steps=3,
        drafted=18,
        depth=9,
        emitted=10,
        reached=(3, 3, 2),
        kept=(3, 2, 2),
    )
    # The last token was emitted by a step without drafts.
    assert (usage.emitted, usage.steps) == (12, 4)
    assert usage.drafts.accept_rate == 7 / 9


def test_a_tree_that_may_accept_less_at_the_end_is_less_deep(scheduler):
    trees = scheduler(proposed_chain=0, proposed_tree=PROPOSED, proposed_depth=3)
    usage = run(trees, {"a": [3, 1]}, Request("a", (1, 2), 7))["a"]
    assert (usage.drafts.drafted, usage.drafts.depth) == (12, 3 + 1)
    assert usage.drafts.accept_rate == 1


def test_steps_without_drafts_are_no_drafting_steps(scheduler):
    """A draft fails behind the first and the second step: the two steps after them decode."""
    request = Request("a", (1, 2), 12)
    usage = run(scheduler(), {"a": [2, 4]}, request, fails=(0, 1))["a"]
    assert usage.steps == 2 + 2 + 1
    assert usage.drafts.steps == 2
    assert usage.drafts.emitted == 3 + 5
    assert usage.drafts.failures == 2


def test_what_stands_behind_a_stop_token_was_not_accepted(scheduler):
    request = Request("a", (1, 2), 30, stop=frozenset({STOP}))
    usage = run(scheduler(), {"a": [4, 5]}, request, stops=(1,))["a"]
    drafts = usage.drafts
    # The stop token itself was drafted, so the step emits no token of its own.
    assert drafts.kept == (2, 1, 1, 1, 0, 0)
    assert (drafts.steps, drafts.emitted, drafts.accepted) == (2, 5 + 1, 5)
    assert drafts.accept_length == 3


def test_a_request_says_how_wide_its_drafts_are(scheduler):
    wide, narrow = Request("wide", (1, 2), 20), Request("narrow", (1, 3), 20, draft_width=2)
    off = Request("off", (1, 4), 20, draft=False)
    script = {"wide": [6, 6, 4], "narrow": [2, 2, 2, 2, 2, 2], "off": []}
    usages = run(scheduler(), script, wide, narrow, off)
    assert usages["wide"].drafts.reached == (3, 3, 3, 3, 2, 2)
    assert usages["narrow"].drafts == DraftCounts("chain", 6, 12, 12, 18, (6, 6), (6, 6))
    assert usages["narrow"].steps == 7
    assert usages["off"].drafts == NO_DRAFTS
    assert usages["off"].steps == 19


def test_a_width_holds_for_trees_and_never_widens(scheduler):
    trees = scheduler(proposed_chain=0, proposed_tree=PROPOSED, proposed_depth=3)
    narrow, wide = (
        Request("narrow", (1, 2), 7, draft_width=2),
        Request("wide", (1, 3), 7, draft_width=63),
    )
    usages = run(trees, {"narrow": [2, 2], "wide": [3, 1]}, narrow, wide)
    assert (usages["narrow"].drafts.drafted, usages["narrow"].drafts.depth) == (4, 4)
    assert usages["wide"].drafts.drafted == 12


class Host:
    """A drafter of the host that fails at every second call."""

    def __init__(self):
        self.limits = []

    def propose(self, known, limit):
        self.limits.append(limit)
        if len(self.limits) % 2 == 0:
            raise ZeroDivisionError
        return [7] * limit

    def release(self, known):
        pass


def test_a_drafter_of_the_host_honours_the_width_and_its_failures_are_counted(scheduler, caplog):
    host = Host()
    running = scheduler(host, proposed_chain=0, max_draft=8)
    usage = run(running, {"a": [3, 3, 1]}, Request("a", (1, 2), 13, draft_width=3))["a"]
    assert host.limits == [3, 3, 3, 2, 1]
    assert usage.drafts == DraftCounts("chain", 3, 7, 7, 10, (3, 2, 2), (3, 2, 2), failures=2)
    assert running.draft_failures == 2


def test_requests_behind_too_many_failures_say_that_nothing_was_asked_for(scheduler):
    running = scheduler()
    first = run(running, {"a": [0]}, Request("a", (1, 2), 50), fails=range(50))["a"].drafts
    assert (first.failures, first.given_up) == (MAX_FAILURES, True)
    requests = Request("b", (1, 2), 9), Request("c", (1, 3), 9, draft=False)
    usages = run(running, {"b": [], "c": []}, *requests)
    assert usages["b"].drafts == DraftCounts("chain", given_up=True)
    assert usages["c"].drafts == NO_DRAFTS
    assert DraftCounts.total(usage.drafts for usage in usages.values()).given_up


def test_nothing_drafts_where_no_drafter_is(scheduler):
    usage = run(scheduler(proposed_chain=0), {"a": []}, Request("a", (1, 2), 5))["a"]
    assert usage.drafts == NO_DRAFTS


def test_a_request_that_is_cancelled_says_what_it_had(scheduler):
    running = scheduler()
    running.submit(Request("a", (1, 2), 50))
    running.submit(Request("b", (1, 3), 50))
    for _ in range(2):
        plan = running.plan()
        results = [
            ItemResult(item.lease, item.request_id, item.rows, (7,) * rows, proposed=PROPOSED)
            for item in plan.items
            for rows in [1 if item.kind is ItemKind.PREFILL else item.rows]
        ]
        running.commit(StepResult(plan.step_id, tuple(results)))
    (end,) = running.cancel("a", FinishReason.STOP)
    assert end.usage.drafts == DraftCounts("chain", 1, 6, 6, 7, (1,) * 6, (1,) * 6)
    assert pickle.loads(pickle.dumps(end)) == end


@pytest.mark.parametrize(
    ("width", "error"),
    [(0, RequestError), (64, RequestError), (2.0, RequestTypeError), (True, RequestTypeError)],
)
def test_a_width_that_cannot_be_is_refused_by_name(scheduler, width, error):
    with pytest.raises(error, match="draft_width") as raised:
        scheduler().check(Request("a", (1, 2), 5, draft_width=width))
    assert raised.value.field == "draft_width"


# -- the sums -------------------------------------------------------------------------------------

STEPS = st.lists(
    st.integers(1, 9).flatmap(lambda depth: st.tuples(st.just(depth), st.integers(0, depth)))
)


def counted(steps):
    tally = DraftTally()
    for depth, accepted in steps:
        tally.add(depth + 2, depth, accepted, accepted + 1)
    return tally.counts("tree")


@given(STEPS)
def test_counts_are_those_of_the_steps_one_by_one(steps):
    counts = counted(steps)
    deepest = max((depth for depth, _ in steps), default=0)
    reached, kept = [0] * deepest, [0] * deepest
    for depth, accepted in steps:
        for place in range(depth):
            if place <= accepted:
                reached[place] += 1
            if place < accepted:
                kept[place] += 1
    assert (list(counts.reached), list(counts.kept)) == (reached, kept)
    assert counts.steps == len(steps)
    assert counts.depth == sum(depth for depth, _ in steps)
    assert counts.accepted == sum(accepted for _, accepted in steps)
    assert 0 <= counts.accept_rate <= 1
    assert counts.accept_length == pytest.approx(bool(steps) * (1 + sum(counts.per_position)))


@given(st.lists(STEPS, max_size=4))
def test_a_total_is_that_of_all_steps(several):
    total = DraftCounts.total([NO_DRAFTS, *map(counted, several)])
    whole = counted([step for steps in several for step in steps])
    assert total == (whole if several else NO_DRAFTS)

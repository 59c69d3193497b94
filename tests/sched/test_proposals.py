"""Proposals of the device in the scheduler: numbers of rows, and whose they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.errors import EngineError, SettingsError
from kinfolk.plans import StateLimits
from kinfolk.sched.drafts import MAX_FAILURES
from kinfolk.sched.events import Emitted
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import UNKNOWN_TOKENS, ItemKind, ItemResult, StepResult
from kinfolk.sched.request import Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import PrefixCache

PROPOSED = 6


@pytest.fixture
def scheduler():
    """``scheduler(**limits)``: one with room for four sequences."""

    def make(tree_rows=64, **limits):
        values = {"slots": 4, "context": 400, "step_tokens": 64, "slice": 32, "max_draft": 0}
        values |= {"proposed_chain": 0 if "proposed_tree" in limits else PROPOSED, **limits}
        state = StateLimits(4, 0, (40,), 400, 64, tree_rows=tree_rows)
        kv_cache = KVCacheManager((None,), state, recurrent=True)
        prefixes = PrefixCache(kv_cache.checkpoints, 0)
        return Scheduler(SchedulerLimits(**values), kv_cache, prefixes)

    return make


def answer(plan, *, kept=1, proposed=PROPOSED, failed=()):
    """A result that keeps ``kept`` rows of each drafted item and emits sevens; ``proposed`` tokens
    are drafted for each that asks. Items of ``failed`` requests end in errors."""
    results = []
    for item in plan.items:
        rows = min(kept, item.rows, item.budget) if item.kind is ItemKind.VERIFY else 1
        emitted = (7,) * rows if item.kind is not ItemKind.PREFILL or item.sample else ()
        rows = item.rows if item.kind is ItemKind.PREFILL else rows
        if item.request_id in failed:
            results.append(ItemResult(item.lease, item.request_id, 0, error="no number"))
            continue
        proposes = proposed * (item.propose != "off")
        results.append(ItemResult(item.lease, item.request_id, rows, emitted, proposed=proposes))
    return StepResult(plan.step_id, tuple(results))


def begun(scheduler, *requests):
    """The first step that decodes."""
    for request in requests:
        scheduler.submit(request)
    while True:
        plan = scheduler.plan()
        if all(item.kind is not ItemKind.PREFILL for item in plan.items):
            return plan
        scheduler.commit(answer(plan))


@pytest.mark.parametrize("proposed", range(1, PROPOSED + 1))
def test_a_step_verifies_no_more_than_was_proposed(scheduler, proposed):
    """A draft of many lanes goes less deep than one of few."""
    running = scheduler()
    plan = begun(running, Request("a", (1, 2), 50))
    running.commit(answer(plan, proposed=proposed))
    assert running.plan().items[0].proposed == proposed


def test_a_step_verifies_what_the_step_before_proposed(scheduler):
    running = scheduler()
    running.submit(Request("a", tuple(range(1, 41)), 50))
    first, last = [], []
    for _ in range(2):
        plan = running.plan()
        first.append(plan.items[0].propose != "off")
        last.append(plan.items[0].sample)
        running.commit(answer(plan))
    # Only the slice that chooses a token is followed by a draft.
    assert first == last == [False, True]
    (item,) = running.plan().items
    assert (item.kind, item.tokens, item.proposed) == (ItemKind.VERIFY, (7,), PROPOSED)
    assert (item.rows, item.is_tree, item.propose) == (PROPOSED + 1, False, "chain")


def test_without_proposals_a_step_decodes(scheduler):
    running = scheduler()
    plan = begun(running, Request("a", (1, 2), 50))
    running.commit(answer(plan, proposed=0))
    (item,) = running.plan().items
    assert (item.kind, item.proposed, item.propose) == (ItemKind.DECODE, 0, "chain")


def several(count=4):
    return [Request(str(i), (1, 2 + i), 50) for i in range(count)]


def asks_on(running, plan, proposed):
    """Whether the next steps ask for drafts, behind steps that propose so many tokens each."""
    for tokens in proposed:
        running.commit(answer(plan, proposed=tokens))
        plan = running.plan()
    return {item.propose for item in plan.items} != {"off"}


def test_a_step_whose_drafts_fail_is_one_failure_however_many_sequences_it_has(scheduler):
    for steps in (1, 2, MAX_FAILURES - 1):
        running = scheduler()
        assert asks_on(running, begun(running, *several()), [0] * steps)
    running = scheduler()
    assert not asks_on(running, begun(running, *several()), [0] * MAX_FAILURES)


def test_a_draft_that_succeeds_ends_a_row_of_failures(scheduler):
    running = scheduler()
    few = [0] * (MAX_FAILURES - 1)
    assert asks_on(running, begun(running, *several()), [*few, PROPOSED, *few])


def test_a_step_in_which_one_draft_is_there_is_no_failure(scheduler):
    running = scheduler()
    plan = begun(running, *several())
    for _ in range(2 * MAX_FAILURES):
        found = answer(plan, proposed=0)
        first, *others = found.results
        running.commit(replace(found, results=(replace(first, proposed=1), *others)))
        plan = running.plan()
    assert {item.propose for item in plan.items} == {"chain"}


def test_an_item_that_fails_says_nothing_of_its_draft(scheduler):
    """Steps in which nothing but items with errors asked for drafts are no failures."""
    running = scheduler()
    for index in range(2 * MAX_FAILURES):
        plan = begun(running, Request(str(index), (1, 2 + index), 50))
        running.commit(answer(plan, failed=(str(index),)))
    assert {item.propose for item in begun(running, *several()).items} == {"chain"}


def test_a_drafter_that_was_loaded_again_is_asked_again(scheduler):
    running = scheduler()
    plan = begun(running, *several())
    assert not asks_on(running, plan, [0] * MAX_FAILURES)
    running.drafter_reloaded()
    for item in plan.items:
        running.cancel(item.request_id)
    running.commit(answer(running._outstanding[0]))
    plan = begun(running, Request("z", (1, 2), 50))
    assert {item.propose for item in plan.items} == {"chain"}


def test_requests_may_go_without(scheduler):
    plan = begun(scheduler(), Request("a", (1, 2), 50, draft=False))
    (item,) = plan.items
    assert (item.kind, item.proposed, item.propose) == (ItemKind.DECODE, 0, "off")


@pytest.mark.parametrize("trees", [False, True])
def test_a_request_near_its_end_gets_no_more_than_it_can_use(scheduler, trees):
    running = scheduler(**{"proposed_tree" if trees else "proposed_chain": PROPOSED})
    plan = begun(running, Request("a", (1, 2), 6))
    found = []
    while plan is not None:
        (item,) = plan.items
        found.append((item.budget, item.proposed, item.propose != "off"))
        running.commit(answer(plan))
        plan = running.plan()
    chain = [(5, 4, True), (4, 3, True), (3, 2, True), (2, 1, False), (1, 0, False)]
    # Rows of a tree compete for one token, so their number may exceed the tokens that are left.
    tree = [(5, 6, True), (4, 6, True), (3, 6, True), (2, 6, False), (1, 0, False)]
    assert found == (tree if trees else chain)


@pytest.mark.parametrize(
    ("depth", "last"), [(3, [6, 6, 6, 6, 2, 0]), (None, [6, 5, 4, 3, 2, 0])], ids=str
)
def test_no_row_of_a_tree_stands_behind_the_context(scheduler, depth, last):
    """The first n rows of a tree are at most n deep; where all fit, nothing changes."""
    running = scheduler(proposed_tree=PROPOSED, proposed_depth=depth)
    plan, found = begun(running, Request("a", tuple(range(1, 387)), 14)), []
    while plan is not None:
        (item,) = plan.items
        found.append(item.proposed)
        assert item.start + min(item.proposed, depth or item.proposed) < 400
        running.commit(answer(plan))
        plan = running.plan()
    assert found == [PROPOSED] * 7 + last


def test_rows_that_are_left_are_shared_fairly(scheduler):
    running = scheduler(step_tokens=34)
    requests = [Request(str(i), (1, 2 + i), 50) for i in range(4)]
    plan = begun(running, *requests)
    assert [item.proposed for item in plan.items] == [6, 6, 6, 6]
    running = scheduler(step_tokens=18, slice=4)
    plan = begun(running, *requests)
    assert [item.proposed for item in plan.items] == [3, 3, 4, 4]
    assert plan.rows == 18


@pytest.mark.parametrize(("most", "drafted"), [(14, [2, 2, 3, 3]), (5, [0, 0, 0, 1]), (4, [0] * 4)])
def test_a_step_verifies_no_more_rows_than_allowed(scheduler, most, drafted):
    """What is not verified is proposed again."""
    running = scheduler(verify_rows=most)
    plan = begun(running, *(Request(str(i), (1, 2 + i), 50) for i in range(4)))
    assert [item.proposed for item in plan.items] == drafted
    assert [item.propose for item in plan.items] == ["chain"] * 4


def test_slices_beside_drafts_have_all_rows_that_are_left(scheduler):
    running = scheduler(verify_rows=8)
    running.commit(answer(begun(running, Request("a", (1, 2), 50))))
    running.submit(Request("b", tuple(range(1, 60)), 50))
    plan = running.plan()
    assert [item.rows for item in plan.items] == [PROPOSED + 1, 32]


def test_usage_counts_proposed_rows(scheduler):
    running = scheduler()
    plan = begun(running, Request("a", (1, 2), 12))
    events = running.commit(answer(plan, kept=5))
    assert events == [Emitted("a", (7,) * 5)]
    while (plan := running.plan()) is not None:
        events = running.commit(answer(plan, kept=3))
    usage = events[-1].usage
    assert (usage.steps, usage.drafted, usage.accepted) == (3, 6 + 5 + 2, 4 + 2 + 2)


def test_a_result_of_proposed_rows_is_checked(scheduler):
    running = scheduler()
    plan = begun(running, Request("a", (1, 2), 50))
    (item,) = plan.items
    wrong = ItemResult(item.lease, "a", PROPOSED + 2, (7,) * (PROPOSED + 2))
    with pytest.raises(EngineError, match="kept 8 rows of 7"):
        running.commit(StepResult(plan.step_id, (wrong,)))


def test_steps_in_which_nobody_drafts_overlap(scheduler):
    running = scheduler()
    plan = begun(running, Request("a", (1, 2), 50, draft=False))
    following = running.plan_next()
    assert [item.tokens for item in following.items] == [UNKNOWN_TOKENS]
    running.commit(answer(plan))
    running.commit(answer(following))
    drafting = scheduler()
    begun(drafting, Request("a", (1, 2), 50), Request("b", (1, 2), 50, draft=False))
    assert drafting.plan_next() is None


def test_trees_must_fit_the_arena(scheduler):
    with pytest.raises(SettingsError, match="4 trees of 20 drafted rows need an arena of 84 rows"):
        scheduler(proposed_tree=20)
    scheduler(proposed_tree=20, tree_rows=84)
    with pytest.raises(SettingsError, match="proposed_chain must be between 0 and 63, got 64"):
        scheduler(proposed_chain=64)

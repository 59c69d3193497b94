"""A drafter of the host beside proposals of the device: which draft is verified, and when steps
overlap."""

from __future__ import annotations

import pytest

from kinfolk.plans import StateLimits
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind, ItemResult, StepResult
from kinfolk.sched.request import Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import PrefixCache

CHAIN = 6


class Told:
    """A drafter of the host that says what it is told to."""

    def __init__(self):
        self.draft, self.calls = [], 0

    def propose(self, known, limit):
        self.calls += 1
        return self.draft[:limit]

    def release(self, known):
        """Nothing is kept."""


@pytest.fixture
def host():
    return Told()


@pytest.fixture
def scheduler(host):
    """``scheduler(**limits)``: one with the drafter of the host and chains of the device."""

    def make(**limits):
        values = {"slots": 4, "context": 400, "step_tokens": 64, "slice": 32, "max_draft": 15}
        values |= {"proposed_chain": CHAIN, **limits}
        state = StateLimits(4, 0, (40,), 400, 64, tree_rows=128)
        kv_cache = KVCacheManager((None,), state, recurrent=True)
        prefixes = PrefixCache(kv_cache.checkpoints, 0)
        return Scheduler(SchedulerLimits(**values), kv_cache, prefixes, host)

    return make


def answer(plan, *, kept=1, proposed=CHAIN):
    """A result that keeps ``kept`` rows of each drafted item and emits sevens."""
    results = []
    for item in plan.items:
        rows = min(kept, item.rows) if item.kind is ItemKind.VERIFY else 1
        emitted = (7,) * rows if item.sample else ()
        rows = item.rows if item.kind is ItemKind.PREFILL else rows
        proposes = proposed * (item.propose != "off")
        path = tuple(range(1, rows)) if item.proposed else ()
        results.append(
            ItemResult(item.lease, item.request_id, rows, emitted, proposed=proposes, path=path)
        )
    return StepResult(plan.step_id, tuple(results), seconds=0.02 + 0.004 * plan.rows)


def begun(running, *requests):
    """The first step that decodes."""
    for request in requests:
        running.submit(request)
    while True:
        plan = running.plan()
        if all(item.kind is not ItemKind.PREFILL for item in plan.items):
            return plan
        running.commit(answer(plan))


REQUEST = Request("a", (1, 2, 3), 200)


@pytest.mark.parametrize(
    ("host_first", "host_tokens", "device_rows"),
    [(False, 3, CHAIN), (False, CHAIN, CHAIN), (True, CHAIN, 0), (False, 9, 0)],
)
def test_the_longer_draft_is_verified_and_the_order_decides_between_equals(
    scheduler, host, host_first, host_tokens, device_rows
):
    host.draft = [9] * host_tokens
    (item,) = begun(scheduler(host_first=host_first), REQUEST).items
    assert item.proposed == device_rows
    assert len(item.tokens) - 1 == (0 if device_rows else host_tokens)


def test_a_text_that_is_copied_is_not_drafted_for_by_the_device_too(scheduler, host):
    host.draft = [7] * 9
    running = scheduler()
    plan, modes = begun(running, REQUEST), []
    for kept in (10, 10, 4, 10):
        modes.append(plan.items[0].propose)
        running.commit(answer(plan, kept=kept))
        plan = running.plan()
    # Only while all of the draft before was accepted.
    assert modes == ["chain", "off", "off", "chain"]


def test_by_cost_the_draft_of_which_more_is_accepted_is_verified(scheduler, host):
    """A drafter of the host that is always wrong is left for the device's, which is right."""
    running = scheduler(widths="cost")
    host.draft = [9] * 7
    plan, proposed = begun(running, REQUEST), []
    while plan is not None:
        (item,) = plan.items
        proposed.append(item.proposed)
        kept = item.rows if item.proposed else 1
        running.commit(answer(plan, kept=kept))
        plan = running.plan() if running.alive else None
    assert sum(proposed[-10:]) > 10


def steps_of(running, host, drafts):
    """For each draft, whether the step after is planned before the one under way is known."""
    plan, overlapped = begun(running, REQUEST), []
    for draft in drafts:
        host.draft = draft
        following = running.plan_next()
        overlapped.append(following is not None)
        running.commit(answer(plan))
        plan = following or running.plan()
    return overlapped


def test_steps_overlap_until_the_host_finds_a_draft(scheduler, host):
    running = scheduler(proposed_chain=0)
    drafts = [[], [], [5], [5, 6], [], []]
    # The first token of a draft is the one that the step under way chooses; the step that verifies
    # the draft must be known before the next one.
    assert steps_of(running, host, drafts) == [True, True, True, False, False, True]
    assert host.calls


def test_drafts_that_do_not_pay_keep_no_step_from_overlapping(scheduler, host):
    running = scheduler(proposed_chain=0, widths="cost")
    host.draft = [9, 9, 9]
    plan = begun(running, Request("a", (1, 2, 3), 390))
    for _ in range(60):
        following = running.plan_next()
        running.commit(answer(plan, kept=1))
        plan = following or running.plan()
    overlapped = []
    for _ in range(40):
        following = running.plan_next()
        overlapped.append(following is not None)
        running.commit(answer(plan, kept=1))
        plan = following or running.plan()
    assert sum(overlapped) >= 36


@pytest.mark.parametrize(
    ("asked", "mode", "rows"), [("auto", "chain", 6), ("chain", "chain", 6), ("tree", "tree", 11)]
)
def test_a_request_gets_the_mode_that_it_asks_for(scheduler, asked, mode, rows):
    running = scheduler(proposed_tree=11, proposed_depth=6)
    plan = begun(running, Request("a", (1, 2, 3), 50, draft_mode=asked))
    (item,) = plan.items
    assert (item.proposed, item.is_tree, item.propose) == (rows, mode == "tree", mode)
    running.commit(answer(plan, kept=3))
    (finished,) = running.cancel("a")
    assert finished.usage.drafts.mode == mode


def test_a_width_for_all_requests_holds_for_every_draft(scheduler, host):
    running = scheduler(draft_width=2)
    plan = begun(running, REQUEST)
    assert plan.items[0].proposed == 2
    running.commit(answer(plan, kept=3))
    host.draft = [5] * 9
    assert running.plan().items[0].tokens[1:] in ((), (5, 5))


def test_a_drafter_whose_drafts_fail_is_asked_no_more(scheduler):
    running = scheduler()
    plan, asked = begun(running, REQUEST), []
    for _ in range(12):
        asked.append(plan.items[0].propose)
        running.commit(answer(plan, proposed=0))
        plan = running.plan()
    assert asked[:3] == ["chain"] * 3
    assert asked[-1] == "off"

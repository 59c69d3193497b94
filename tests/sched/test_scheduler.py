"""Single properties of the scheduler, each in a small scenario of its own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kinfolk.errors import ContextLengthExceeded, EngineError, RequestError, SettingsError
from kinfolk.plans import StateLimits
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind, ItemResult, StepResult, TokenLogprob
from kinfolk.sched.request import FinishReason, Request, Status
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import PrefixCache


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 11 + index * index) % 29 for index in range(length))


def run(world, *requests: Request) -> None:
    for request in requests:
        world.submit(request)
    world.drain()


def ids(plan) -> list[str]:
    return [item.request_id for item in plan.items]


# -- admission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prompt": ()}, RequestError, "prompt is empty"),
        ({"max_new": 0}, RequestError, "max_new must be at least 1, got 0"),
        ({"quantum": 0}, RequestError, "quantum must be at least 1, got 0"),
        ({"prompt": (1, 29)}, RequestError, r"between 0 and 28, the prompt has 1\.\.29"),
        ({"prompt": (1, -1)}, RequestError, r"between 0 and 28, the prompt has -1\.\.1"),
        ({"checkpoints": (1, 11)}, RequestError, r"prompt of 10 tokens, got \[11\]"),
        ({"checkpoints": (0,)}, RequestError, r"got \[0\]"),
        ({"max_new": 503}, ContextLengthExceeded, r"10 prompt .* 503 new .* = 513, .* holds 512"),
    ],
)
def test_an_impossible_request_is_refused_with_its_reason(make_world, change, error, message):
    world = make_world()
    request = replace(Request("r", prompt(10), 5), **change)
    with pytest.raises(error, match=message):
        world.submit(request)
    assert world.scheduler.idle
    assert world.plan() is None


def test_a_request_that_the_pool_can_never_hold_is_refused(make_world):
    world = make_world(blocks=(2,))
    run(world, Request("fits", prompt(100), 28))
    with pytest.raises(ContextLengthExceeded, match=r"129 positions need \(3,\) blocks"):
        world.submit(Request("too long", prompt(100), 29))


def test_the_whole_context_can_be_used(make_world):
    world = make_world()
    request = Request("r", prompt(500), 12)
    run(world, request)
    assert world.streams["r"] == world.expected(request)
    assert world.finished["r"].reason is FinishReason.LENGTH


def test_the_head_of_the_line_is_not_overtaken_by_a_smaller_request(make_world):
    world = make_world(slots=3, blocks=(4,))
    world.submit(Request("running", prompt(10), 100))
    world.step()
    world.submit(Request("large", prompt(100), 100))
    world.submit(Request("small", prompt(4), 4))
    for _ in range(20):
        plan = world.step()
        assert [item.request_id for item in plan.items] == ["running"]
    world.drain()
    first = [next(p.step_id for p in world.plans if name in ids(p)) for name in ("large", "small")]
    assert first[0] <= first[1]


def test_lower_priority_numbers_go_first_and_equals_in_order_of_arrival(make_world):
    world = make_world(slots=1)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -1)):
        world.submit(Request(name, prompt(4), 1, priority=priority))
    world.drain()
    assert [plan.items[0].request_id for plan in world.plans] == ["d", "b", "a", "c"]


def test_a_cancelled_head_lets_the_next_one_in(make_world):
    world = make_world(slots=3, blocks=(4,))
    world.submit(Request("running", prompt(10), 100))
    world.step()
    world.submit(Request("large", prompt(100), 100))
    world.submit(Request("small", prompt(4), 4))
    world.step()
    world.cancel("large")
    assert ids(world.step()) == ["running", "small"]


def test_an_id_is_free_again_after_its_end(make_world):
    world = make_world()
    run(world, Request("r", prompt(4), 2))
    world.submit(Request("r", prompt(4), 2))
    assert world.scheduler.waiting == 1


def test_limits_that_cannot_work_are_refused_by_name():
    with pytest.raises(SettingsError, match="step_tokens must be above the slice length 512"):
        SchedulerLimits(slots=1, context=64, step_tokens=512)
    for name, value in (
        ("slots", 0),
        ("context", 1),
        ("step_sequences", 0),
        ("quantum", 0),
        ("mixed_slice", 0),
        ("max_draft", 64),
        ("prefill_share", 1.0),
        ("vocabulary", 0),
    ):
        with pytest.raises(SettingsError, match=name):
            SchedulerLimits(**{"slots": 1, "context": 64, name: value})


def test_a_state_made_for_shorter_steps_is_refused():
    limits = StateLimits(slots=1, checkpoints=0, blocks=(4,), context=256, step_rows=16)
    kv_cache = KVCacheManager((None,), limits, recurrent=False)
    with pytest.raises(SettingsError, match=r"1 slots and 32 rows .* made for 1 and 16"):
        Scheduler(
            SchedulerLimits(slots=1, context=256, slice=32, step_tokens=64),
            kv_cache,
            PrefixCache(kv_cache.checkpoints, 0),
        )


# -- prefill --------------------------------------------------------------------------------------


def test_slices_end_on_an_absolute_grid_and_only_the_last_one_samples(make_world):
    world = make_world(slice=16)
    run(world, Request("r", prompt(40), 1))
    spans = [(item.start, len(item.tokens), item.sample) for p in world.plans for item in p.items]
    assert spans == [(0, 16, False), (16, 16, False), (32, 8, True)]


def test_after_a_reused_prefix_the_first_slice_ends_on_the_same_grid(make_world):
    world = make_world(slice=16)
    run(world, Request("cold", prompt(40), 1, checkpoints=(21,)))
    world.plans.clear()
    run(world, Request("warm", prompt(60), 1))
    assert [item.start for plan in world.plans for item in plan.items] == [21, 32, 48]
    assert world.finished["warm"].usage.reused == 21


def test_a_checkpoint_does_not_cut_a_slice(make_world):
    world = make_world(slice=16)
    run(world, Request("r", prompt(40), 1, checkpoints=(5, 16, 21, 40)))
    items = [item for plan in world.plans for item in plan.items]
    assert [len(item.tokens) for item in items] == [16, 16, 8]
    assert [[after for after, _ in item.stores] for item in items] == [[5, 16], [5], [8]]
    assert len(world.prefixes) == 4


def test_the_head_of_the_cohort_advances_one_slice_every_step(make_world):
    world = make_world(slots=16, slice=16, step_tokens=24, quality=1.0)
    for number in range(15):
        world.submit(Request(f"busy{number}", (number,), 100))
    for _ in range(20):
        world.step()
    world.submit(Request("long", prompt(160), 1))
    before = len(world.plans)
    while "long" not in world.finished:
        world.step()
    assert len(world.plans) - before == 10


def test_decoding_goes_on_beside_a_long_prompt(make_world):
    world = make_world(slice=16, step_tokens=17)
    world.submit(Request("busy", prompt(3), 40))
    world.step()
    world.submit(Request("long", prompt(320), 1))
    while "long" not in world.finished:
        assert ids(world.step())[0] == "busy"


def test_slices_are_short_while_others_decode(make_world):
    """They end on a finer grid then, and the next one alone ends where it always would."""
    world = make_world(slice=64, mixed_slice=16, step_tokens=100)
    world.submit(Request("busy", prompt(3), 3))
    world.step()
    world.submit(Request("long", prompt(150), 1))
    while "long" not in world.finished:
        world.step()
    spans = {
        (item.start, item.start + item.rows)
        for plan in world.plans
        for item in plan.items
        if item.request_id == "long"
    }
    assert spans == {(0, 16), (16, 32), (32, 64), (64, 128), (128, 150)}


def test_a_prompt_of_one_short_slice_is_not_cut(make_world):
    world = make_world(slice=64, mixed_slice=16, step_tokens=100)
    world.submit(Request("busy", prompt(3), 3))
    world.step()
    world.submit(Request("short", prompt(16), 1))
    assert [item.rows for item in world.step().items] == [1, 16]


def test_many_short_slices_fill_what_decoding_leaves(make_world):
    world = make_world(slots=6, slice=64, mixed_slice=16, step_tokens=128)
    world.submit(Request("busy", prompt(3), 9))
    world.step()
    for number in range(4):
        world.submit(Request(f"long{number}", prompt(60, number), 1))
    assert [item.rows for item in world.step().items] == [1, 16, 16, 16, 16]


def test_prompts_share_a_step_when_their_slices_fit(make_world):
    world = make_world(slots=4, slice=16, step_tokens=40)
    for name in "abc":
        world.submit(Request(name, prompt(16), 1))
    assert [ids(world.step()), ids(world.step())] == [["a", "b"], ["c"]]


def test_prefill_gets_its_share_of_the_rows(make_world):
    """Eight drafting sequences would take all 64 rows; half of them stay for prompts."""
    world = make_world(
        slots=16, slice=8, step_tokens=64, max_draft=15, prefill_share=0.5, quality=1.0
    )
    for number in range(8):
        world.submit(Request(f"busy{number}", (number,), 300))
    for _ in range(3):
        world.step()
    for number in range(4):
        world.submit(Request(f"new{number}", prompt(80, number), 1))
    for _ in range(5):
        plan = world.step()
        prefill = [item for item in plan.items if item.kind is ItemKind.PREFILL]
        assert sum(len(item.tokens) for item in prefill) == 32
        assert len(plan.items) == 12


# -- drafts ---------------------------------------------------------------------------------------


def test_good_drafts_save_steps_and_change_nothing(make_world):
    request = Request("r", prompt(20), 60)
    plain, drafted = make_world(), make_world(quality=1.0, max_draft=7)
    run(plain, request)
    run(drafted, request)
    assert plain.streams == drafted.streams
    usage = drafted.finished["r"].usage
    assert usage.accepted == usage.drafted == 59 - usage.steps
    assert len(drafted.plans) < len(plain.plans) / 2


def test_a_request_can_decline_drafts(make_world):
    world = make_world(quality=1.0)
    run(world, Request("r", prompt(20), 10, draft=False))
    assert world.finished["r"].usage.drafted == 0


def test_widths_shrink_before_anybody_is_dropped(make_world):
    world = make_world(slots=8, slice=8, step_tokens=16, max_draft=15, quality=1.0)
    for number in range(8):
        world.submit(Request(str(number), (number,), 40))
    while world.scheduler.waiting or any(
        item.kind is ItemKind.PREFILL for item in world.plans[-1].items
    ):
        world.step()
    while world.scheduler.running == 8:
        plan = world.step()
        assert len(plan.items) == 8
        assert plan.rows <= 16
    assert any(item.kind is ItemKind.VERIFY for p in world.plans for item in p.items)


def test_a_broken_drafter_is_counted_and_harms_nobody(make_world, caplog):
    world = make_world(quality=1.0)
    world.drafter.raises = True
    request = Request("r", prompt(5), 10)
    run(world, request)
    assert world.streams["r"] == world.expected(request)
    assert world.scheduler.draft_failures == 8
    assert len(caplog.records) == 1


@pytest.mark.parametrize("answer", [None, 7, "ab", [3, "4"], [3, 4.0], [None], object()])
def test_a_drafter_that_proposes_no_tokens_harms_nobody(make_world, answer):
    world = make_world(quality=1.0)
    world.drafter.propose = lambda known, limit: answer
    request = Request("r", prompt(5), 10)
    run(world, request)
    assert world.streams["r"] == world.expected(request)
    assert world.scheduler.draft_failures >= 7, "a draft of one token may have none of the bad ones"


def test_a_drafter_that_never_ends_is_cut(make_world):
    world = make_world(quality=1.0)

    def propose(known, limit):
        yield from itertools.repeat(3, limit)
        raise AssertionError("nobody needs more")

    world.drafter.propose = propose
    world.submit(Request("r", prompt(5), 10))
    world.step()
    assert set(world.plan().items[0].tokens[1:]) == {3}


def test_drafts_end_at_a_token_that_does_not_exist(make_world):
    world = make_world(quality=1.0)
    world.drafter.propose = lambda known, limit: [3, 29, 4, 5]
    world.submit(Request("r", prompt(5), 10))
    world.step()
    assert world.plan().items[0].tokens[1:] == (3,)


# -- the end of a request -------------------------------------------------------------------------


def test_a_stop_token_is_the_last_one_and_is_emitted(make_world):
    world = make_world(quality=1.0, max_draft=15)
    whole = world.expected(Request("r", prompt(20), 40))
    stop = whole[20]
    request = Request("r", prompt(20), 40, stop=frozenset({stop}))
    run(world, request)
    assert world.streams["r"] == whole[: whole.index(stop) + 1]
    assert world.finished["r"].reason is FinishReason.STOP
    assert world.finished["r"].usage.emitted == whole.index(stop) + 1


def test_the_first_token_can_be_the_last(make_world):
    world = make_world(quality=1.0)
    first = world.expected(Request("r", prompt(20), 1))[0]
    run(world, Request("length", prompt(20), 1))
    run(world, Request("stop", prompt(20), 9, stop=frozenset({first})))
    assert world.streams == {"length": [first], "stop": [first]}
    assert world.finished["length"].reason is FinishReason.LENGTH
    assert world.finished["stop"].reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("steps", "status"), [(0, Status.WAITING), (1, Status.PREFILL), (6, Status.DECODE)]
)
def test_cancelling_takes_effect_before_the_next_step(make_world, steps, status):
    world = make_world(slots=1)
    world.submit(Request("r", prompt(40), 40))
    for _ in range(steps):
        world.step()
    assert world.scheduler.alive["r"].status is status
    world.cancel("r")
    assert world.finished["r"].reason is FinishReason.CANCELLED
    assert world.plan() is None
    world.check_idle()


def test_cancelling_an_unknown_or_finished_request_is_no_fault(make_world):
    world = make_world()
    run(world, Request("r", prompt(4), 2))
    assert world.scheduler.cancel("r") == []
    assert world.scheduler.cancel("unknown") == []


def test_the_slot_of_a_request_cancelled_inside_a_step_has_a_new_epoch(make_world):
    world = make_world(slots=1)
    world.submit(Request("r", prompt(10), 40))
    plan = world.plan()
    result = world.engine.run(plan)
    world.cancel("r")
    world.submit(Request("next", prompt(10), 4))
    assert world.scheduler.commit(result) == []
    assert world.scheduler.stale_results == 1
    lease = world.step().items[0].lease
    assert lease.slot == plan.items[0].lease.slot
    assert lease.epoch > plan.items[0].lease.epoch


def test_a_caller_can_end_a_request_as_complete(make_world):
    world = make_world()
    world.submit(Request("r", prompt(10), 40))
    for _ in range(5):
        world.step()
    world.cancel("r", FinishReason.STOP)
    assert world.finished["r"].reason is FinishReason.STOP
    world.check_idle()


def test_an_item_error_ends_that_request_only(make_world):
    world = make_world(slots=3)
    requests = [Request(name, prompt(10, seed), 20) for seed, name in enumerate("abc")]
    for request in requests:
        world.submit(request)
    for _ in range(4):
        world.step()
    world.step(failing=frozenset({"b"}))
    assert world.finished["b"].reason is FinishReason.ERROR
    assert world.finished["b"].error == "the toy stumbled"
    world.drain()
    assert all(world.streams[r.id] == world.expected(r) for r in requests if r.id != "b")


def test_a_lost_step_ends_all_with_a_slot_and_those_in_line_run_afterwards(make_world):
    world = make_world(slots=2)
    requests = [Request(name, prompt(10, seed), 20) for seed, name in enumerate("abc")]
    for request in requests:
        world.submit(request)
    world.step()
    world.lose(world.plan())
    assert sorted(world.finished) == ["a", "b"]
    world.drain()
    assert world.streams["c"] == world.expected(requests[2])


def test_planning_twice_is_refused(make_world):
    world = make_world()
    world.submit(Request("r", prompt(10), 4))
    world.plan()
    with pytest.raises(EngineError, match="step 1 was planned and not committed"):
        world.plan()


def test_logprobs_are_cut_with_their_tokens_and_must_be_as_many(make_world):
    world = make_world(quality=1.0, max_draft=3)
    whole = world.expected(Request("r", prompt(5), 20))
    world.submit(Request("r", prompt(5), 20, stop=frozenset({whole[1]})))
    world.step()
    world.drafter.propose = lambda known, limit: whole[1:4]
    plan = world.plan()
    outcome = world.engine.run(plan).results[0]
    logprobs = tuple(TokenLogprob(token, -1.0) for token in outcome.emitted)
    assert len(logprobs) == 4
    with pytest.raises(EngineError, match="3 log-probabilities for 4 tokens"):
        world.scheduler.commit(StepResult(plan.step_id, (replace(outcome, logprobs=logprobs[:3]),)))
    events = world.scheduler.commit(
        StepResult(plan.step_id, (replace(outcome, logprobs=logprobs),))
    )
    assert events[0].tokens == (whole[1],)
    assert [entry.token for entry in events[0].logprobs] == [whole[1]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda r: replace(r, kept=2), "kept 2 rows of 1"),
        (lambda r: replace(r, kept=0, emitted=()), "kept 0 rows of 1"),
        (lambda r: replace(r, emitted=()), "emitted 0 tokens for 1 kept"),
        (lambda r: replace(r, request_id="other"), "answered for request 'other'"),
        (lambda r: replace(r, lease=replace(r.lease, epoch=9)), "has no result"),
    ],
)
def test_a_result_that_does_not_fit_names_the_item_and_changes_nothing(make_world, wrong, message):
    world = make_world()
    request = Request("r", prompt(5), 6)
    world.submit(request)
    world.step()
    plan = world.plan()
    result = world.engine.run(plan)
    with pytest.raises(EngineError, match=message):
        world.scheduler.commit(StepResult(plan.step_id, (wrong(result.results[0]),)))
    world.take(world.scheduler.commit(result))
    world.drain()
    assert world.streams["r"] == world.expected(request)


def test_kept_drafts_must_be_the_emitted_tokens_and_within_the_budget(make_world):
    world = make_world(quality=1.0, max_draft=15)
    whole = world.expected(Request("r", prompt(5), 5))
    world.submit(Request("r", prompt(5), 5))
    world.step()
    world.drafter.propose = lambda known, limit: whole[1 : 1 + limit]
    plan = world.plan()
    item, result = plan.items[0], world.engine.run(plan)
    outcome = result.results[0]
    assert (item.budget, len(item.tokens), outcome.kept) == (4, 4, 4)
    other = (outcome.emitted[0] + 1, *outcome.emitted[1:])
    for wrong, message in (
        (replace(outcome, emitted=other), "tokens it did not emit"),
        (replace(outcome, kept=5, emitted=(*outcome.emitted, 1)), "kept 5 rows of 4"),
    ):
        with pytest.raises(EngineError, match=message):
            world.scheduler.commit(StepResult(plan.step_id, (wrong,)))
    world.take(world.scheduler.commit(result))
    assert world.streams["r"] == whole


def test_results_may_come_in_any_order(make_world):
    world = make_world(slots=3)
    requests = [Request(name, prompt(10, seed), 6) for seed, name in enumerate("abc")]
    for request in requests:
        world.submit(request)
    while (plan := world.plan()) is not None:
        results: tuple[ItemResult, ...] = world.engine.run(plan).results
        world.take(world.scheduler.commit(StepResult(plan.step_id, results[::-1])))
    assert all(world.streams[request.id] == world.expected(request) for request in requests)


# -- reuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 70), (100,)])
@pytest.mark.parametrize("position", [20, 64, 100, 130])
def test_a_cached_prefix_gives_the_tokens_of_a_cold_run(make_world, windows, recurrent, position):
    world = make_world(windows=windows, recurrent=recurrent)
    run(world, Request("first", prompt(150), 3, checkpoints=(position,)))
    requests = [Request(f"r{i}", (*prompt(position), i), 80) for i in range(3)]
    run(world, *requests)
    for request in requests:
        assert world.streams[request.id] == world.expected(request)
        assert world.finished[request.id].usage.reused == position
    world.check_idle()


def test_a_checkpoint_is_used_only_after_its_step_succeeded(make_world):
    world = make_world(slice=64, step_tokens=128)
    world.submit(Request("a", prompt(70), 4, checkpoints=(30,)))
    plan = world.plan()
    assert len(world.prefixes) == 0
    world.take(world.scheduler.commit(world.engine.run(plan)))
    assert len(world.prefixes) == 1


def test_the_checkpoint_of_a_failed_slice_is_dropped(make_world):
    world = make_world(slice=64, step_tokens=128)
    world.submit(Request("a", prompt(70), 4, checkpoints=(30,)))
    world.step(failing=frozenset({"a"}))
    assert len(world.prefixes) == 0
    world.check_idle()


def test_the_checkpoint_of_a_request_cancelled_inside_its_slice_is_real(make_world):
    world = make_world(slice=64, step_tokens=128)
    world.submit(Request("a", prompt(70), 4, checkpoints=(30,)))
    plan = world.plan()
    world.cancel("a")
    world.take(world.scheduler.commit(world.engine.run(plan)))
    request = Request("b", prompt(70), 4)
    run(world, request)
    assert world.finished["b"].usage.reused == 30
    assert world.streams["b"] == world.expected(request)


@pytest.mark.parametrize("recurrent", [True, False])
def test_the_end_of_a_generation_is_kept_for_the_next_turn(make_world, recurrent):
    world = make_world(recurrent=recurrent)
    first = Request("first", prompt(50), 30, keep=True)
    run(world, first)
    answer = tuple(world.streams["first"])
    second = Request("second", (*first.prompt, *answer, 5, 6), 20)
    run(world, second)
    assert world.finished["second"].usage.reused == 50 + 29
    assert world.streams["second"] == world.expected(second)


@pytest.mark.parametrize("recurrent", [True, False])
def test_rows_kept_behind_a_stop_token_never_reach_the_cache(make_world, recurrent):
    """Recurrent state is then too far and is dropped; attention just truncates its positions."""
    world = make_world(recurrent=recurrent, quality=1.0, max_draft=20, slice=32, step_tokens=64)
    whole = world.expected(Request("first", prompt(50), 30))
    stop = frozenset({whole[4]})
    world.submit(Request("first", prompt(50), 30, stop=stop, keep=True))
    world.step()
    world.step()
    world.drafter.propose = lambda known, limit: whole[1:limit]
    world.step()
    cut = whole.index(whole[4]) + 1
    assert world.streams["first"] == whole[:cut]
    assert len(world.prefixes) == (0 if recurrent else 1)
    del world.drafter.propose
    second = Request("second", (*prompt(50), *whole[:cut], 5, 6), 20)
    run(world, second)
    assert world.finished["second"].usage.reused == (0 if recurrent else 50 + cut - 1)
    assert world.streams["second"] == world.expected(second)


def test_a_state_in_the_middle_of_a_step_is_not_kept(make_world):
    world = make_world()
    world.submit(Request("first", prompt(50), 30, keep=True))
    for _ in range(8):
        world.step()
    plan = world.plan()
    world.cancel("first")
    world.take(world.scheduler.commit(world.engine.run(plan)))
    assert len(world.prefixes) == 0


def test_a_stop_string_keeps_the_state_between_steps(make_world):
    world = make_world()
    world.submit(Request("first", prompt(50), 30, keep=True))
    for _ in range(8):
        world.step()
    world.cancel("first", FinishReason.STOP)
    second = Request("second", (*prompt(50), *world.streams["first"], 3), 20)
    run(world, second)
    assert world.finished["second"].usage.reused == 50 + len(world.streams["first"]) - 1
    assert world.streams["second"] == world.expected(second)


def test_old_checkpoints_make_room_for_a_request(make_world):
    world = make_world(slots=1, blocks=(4,), checkpoints=4)
    run(world, Request("a", prompt(128, 1), 1, checkpoints=(64, 128)))
    run(world, Request("b", prompt(64, 2), 1, checkpoints=(64,)))
    assert len(world.prefixes) == 3
    request = Request("c", prompt(190, 3), 40)
    run(world, request)
    assert world.streams["c"] == world.expected(request)
    assert len(world.prefixes) == 0


def test_a_checkpoint_that_leaves_no_room_for_the_rest_is_given_up(make_world):
    """The start's half-filled chunk would have to be held twice; computed cold, all fits."""
    world = make_world(slots=1, blocks=(4,))
    run(world, Request("a", prompt(110), 1, checkpoints=(100,)))
    request = Request("b", prompt(200), 56)
    run(world, request)
    assert world.finished["b"].usage.reused == 0
    assert world.streams["b"] == world.expected(request)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_part(make_world):
    world = make_world()
    request = Request("a", prompt(40), 5, checkpoints=(30, 40))
    run(world, request)
    run(world, replace(request, id="b"))
    assert world.finished["b"].usage.reused == 30
    assert world.streams["b"] == world.streams["a"]


def test_checkpoints_stay_when_evicting_them_would_not_be_enough(make_world):
    world = make_world(slots=3, blocks=(6,))
    run(world, Request("a", prompt(64, 1), 1, checkpoints=(64,)))
    world.submit(Request("busy", prompt(10, 2), 110))
    world.step()
    world.submit(Request("large", prompt(300, 3), 20))
    for _ in range(5):
        world.step()
    assert world.scheduler.waiting == 1
    assert len(world.prefixes) == 1
    world.drain()
    assert len(world.prefixes) == 1


def test_checkpoints_that_make_room_are_found_on_the_host(make_world):
    world = make_world(slots=1, blocks=(4,), checkpoints=2, host_rows=20)
    for number in range(4):
        run(world, Request(f"a{number}", prompt(100, number), 1, checkpoints=(90,)))
    assert len(world.prefixes) == 4
    for number in range(4):
        request = Request(f"b{number}", (*prompt(100, number)[:95], 3), 9)
        run(world, request)
        usage = world.finished[request.id].usage
        assert world.streams[request.id] == world.expected(request)
        assert usage.reused == 90
        assert number > 1 or usage.reused_from == "host"
    assert world.kv_cache.checkpoints.demotions >= 2


@pytest.mark.parametrize("host_rows", [20, 0])
def test_a_turn_that_needs_every_block_starts_from_what_it_has_sent_to_the_host(
    make_world, host_rows
):
    """A client that names no limit asks for the whole context. On the device the chunk that the
    prefix ends in would need one block more than there are."""
    world = make_world(slots=1, blocks=(4,), checkpoints=2, host_rows=host_rows)
    known = prompt(100, 1)
    run(world, Request("first", known, 1, checkpoints=(90,)))
    for turn in range(3):
        known = (*known[:95], *prompt(20 * turn + 5, turn + 2))
        request = Request(f"turn {turn}", known, 256 - len(known), checkpoints=(len(known) - 3,))
        run(world, request)
        usage = world.finished[request.id].usage
        assert world.streams[request.id] == world.expected(request)
        assert usage.reused_from == ("host" if host_rows else None)
        assert usage.reused == (90 if host_rows else 0)


def test_a_request_says_that_it_started_from_the_device_or_from_nothing(make_world):
    world = make_world(checkpoints=2)
    run(world, Request("a", prompt(40, 1), 1, checkpoints=(32,)))
    run(world, Request("b", prompt(40, 1), 1))
    places = [world.finished[name].usage.reused_from for name in "ab"]
    assert places == [None, "device"]


def test_room_is_not_made_where_a_start_on_the_host_would_still_not_fit(make_world):
    """Its chunks are on the device for another checkpoint. When that leaves they leave with it, so
    it stays, and the request starts when the running one has ended."""
    world = make_world(slots=2, blocks=(7,), checkpoints=2, host_rows=40)
    run(world, Request("a", prompt(140, 1), 1, checkpoints=(130, 139)))
    world.prefixes.evict_one([each for each in world.prefixes if each.length == 139])
    held = [checkpoint.resident for _, checkpoint in world.prefixes.items()]
    assert held == [False, True]
    world.submit(Request("long", prompt(150, 2), 30))
    world.step()
    late = Request("late", (*prompt(140, 1)[:135], 5), 100)
    world.submit(late)
    world.drain()
    assert world.finished["late"].usage.reused == 130
    assert world.streams["late"] == world.expected(late)


def test_the_least_recently_used_checkpoint_goes_first(make_world):
    world = make_world(checkpoints=2)
    run(world, Request("a", prompt(40, 1), 1, checkpoints=(32,)))
    run(world, Request("b", prompt(40, 2), 1, checkpoints=(32,)))
    run(world, Request("a again", prompt(40, 1), 1))
    run(world, Request("c", prompt(40, 3), 1, checkpoints=(32,)))
    run(world, Request("a once more", prompt(40, 1), 1), Request("b again", prompt(40, 2), 1))
    assert world.finished["a once more"].usage.reused == 32
    assert world.finished["b again"].usage.reused == 0


def test_no_stored_prefix_goes_for_a_state_that_cannot_be_kept(make_world):
    """The state of a sequence that is not exact is never kept, however much room there is."""
    world = make_world()
    run(world, Request("a", prompt(40, 1), 1, checkpoints=(32,)))
    world.submit(Request("b", prompt(40, 2), 4, keep=True))
    world.step()
    world.kv_cache.tables.sequence(world.scheduler.alive["b"].lease).exact = False
    world.drain()
    run(world, Request("a again", prompt(40, 1), 1))
    assert world.finished["a again"].usage.reused == 32

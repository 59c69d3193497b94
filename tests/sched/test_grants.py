"""Manual turns: a request is served while it has a grant, then held with its slot and state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.errors import RequestError, SlotTaken
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import FinishReason, Request, Status

EVER = 10_000


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 11 + index * index) % 29 for index in range(length))


def run_until_held(world, bound=100):
    for _ in range(bound):
        if world.step() is None:
            return
    raise AssertionError("the world does not come to rest")


def test_a_request_stops_exactly_at_its_grant_and_goes_on_where_it_was(make_world):
    world = make_world(quality=1.0, max_draft=5)
    request = Request("r", prompt(20), 12, grant=3)
    world.submit(request)
    run_until_held(world)
    assert (len(world.streams["r"]), world.held) == (3, ["r"])
    assert world.scheduler.view()[0].status is Status.HELD
    steps = len(world.plans)
    world.scheduler.grant("r", 4)
    run_until_held(world)
    assert (len(world.streams["r"]), world.held) == (7, ["r", "r"])
    assert all(item.kind.value != "prefill" for plan in world.plans[steps:] for item in plan.items)
    world.scheduler.grant("r")
    world.drain()
    assert world.streams["r"] == world.expected(request)
    assert world.finished["r"].reason is FinishReason.LENGTH
    assert world.held == ["r", "r"], "it ended by its length, not by a grant"
    world.check_idle()


def test_a_grant_of_the_whole_length_ends_the_request_without_holding_it(make_world):
    world = make_world()
    world.submit(Request("r", prompt(20), 4, grant=4))
    world.drain()
    assert world.held == []
    assert world.finished["r"].reason is FinishReason.LENGTH


def test_grants_add_up_while_a_request_runs(make_world):
    world = make_world(quality=None)
    world.submit(Request("r", prompt(4), 30, grant=2))
    world.step()
    world.scheduler.grant("r", 3)
    run_until_held(world)
    assert len(world.streams["r"]) == 5


def test_a_held_request_keeps_its_slot_and_others_run_beside_it(make_world):
    world = make_world(slots=2)
    world.submit(Request("held", prompt(20), 12, grant=1))
    run_until_held(world)
    others = [Request(str(number), prompt(9, number), 5) for number in range(3)]
    for other in others:
        world.submit(other)
    run_until_held(world)
    assert [world.streams[other.id] for other in others] == list(map(world.expected, others))
    assert world.scheduler.running == 1
    assert not world.scheduler.idle
    world.cancel("held")
    assert world.finished["held"].reason is FinishReason.CANCELLED
    world.check_idle()


def test_the_end_of_a_cancelled_held_request_can_be_kept(make_world):
    world = make_world()
    request = Request("held", prompt(20), 12, keep=True, grant=4)
    world.submit(request)
    run_until_held(world)
    world.cancel("held", FinishReason.STOP)
    follow = Request("next", (*request.prompt, *world.streams["held"], 3), 4)
    world.submit(follow)
    world.drain()
    assert world.finished["next"].usage.reused == 23
    assert world.streams["next"] == world.expected(follow)


def test_a_step_that_loses_all_state_ends_held_requests_too(make_world):
    world = make_world()
    world.submit(Request("held", prompt(20), 12, grant=1))
    run_until_held(world)
    world.submit(Request("other", prompt(9), 5))
    world.lose(world.plan())
    assert {done.reason for done in world.finished.values()} == {FinishReason.ERROR}
    world.check_idle()


def test_unknown_ids_get_no_grant_and_bad_grants_and_slots_are_refused(make_world):
    world = make_world()
    assert world.scheduler.grant("nobody", 3) == []
    world.submit(Request("r", prompt(4), 4, grant=1))
    for bad in ({"grant": 0}, {"slot": 0}, {"slot": 3}):
        with pytest.raises(RequestError, match=next(iter(bad))):
            world.scheduler.check(Request("x", prompt(4), 4, **bad))


# -- slots -----------------------------------------------------------------------------------------


def test_a_request_runs_in_the_slot_that_it_asks_for_or_is_refused(make_world):
    world = make_world(slots=3)
    world.submit(Request("last", prompt(4), 9, slot=3, grant=1))
    world.submit(Request("any", prompt(4), 9, grant=1))
    run_until_held(world)
    assert {view.request_id: view.slot for view in world.scheduler.view()} == {"last": 3, "any": 1}
    for slot, owner in ((3, "last"), (1, "any")):
        assert world.scheduler.owner(slot) == owner
        with pytest.raises(SlotTaken, match=f"slot {slot} is taken by request '{owner}'"):
            world.scheduler.submit(Request("late", prompt(4), 9, slot=slot))
    assert "late" not in world.scheduler.alive


def test_nobody_else_gets_the_slot_that_a_waiting_request_asks_for(make_world):
    world = make_world(slots=2)
    world.submit(Request("any", prompt(4), 9, grant=1))
    world.submit(Request("first", prompt(4), 9, slot=1, grant=1))
    run_until_held(world)
    assert {view.request_id: view.slot for view in world.scheduler.view()} == {"any": 2, "first": 1}


@pytest.mark.parametrize("preempt", [False, True])
def test_a_slot_that_others_in_line_ask_for_is_better_than_none(make_world, preempt):
    """Nobody overtakes the first in line, so all would wait for ever."""
    world = make_world(slots=1, preempt=preempt, host_rows=None)
    own = Request("own", prompt(4), 9, slot=1, priority=1)
    if preempt:
        world.submit(own)
        for _ in range(3):
            world.step()
    world.submit(Request("any", prompt(4, 2), 9))
    if not preempt:
        world.submit(own)
    world.step()
    (first,) = [each for each in world.scheduler.view() if each.slot is not None]
    assert first.request_id == "any"
    world.drain()
    assert {name: len(stream) for name, stream in world.streams.items()} == {"any": 9, "own": 9}
    world.check_idle()


def test_a_slot_is_free_again_after_its_request_has_ended(make_world):
    world = make_world(slots=2)
    for number in range(3):
        world.submit(Request(str(number), prompt(4, number), 3, slot=2))
        world.drain()
    world.check_idle()


# -- the view --------------------------------------------------------------------------------------


def test_the_view_says_where_each_request_stands(make_world):
    world = make_world(slots=1)
    world.submit(Request("a", prompt(20), 12, quantum=2, grant=2))
    world.submit(Request("b", prompt(5), 3))
    run_until_held(world)
    a, b = world.scheduler.view()
    assert (a.request_id, a.status, a.slot, a.position) == ("a", Status.HELD, 1, 21)
    assert (a.pending, a.emitted, a.remaining, a.left) == (world.streams["a"][-1], 2, 10, 0)
    assert (a.prompt, a.quantum, a.epoch is None) == (20, 2, False)
    assert (b.status, b.slot, b.epoch, b.pending, b.position) == (
        Status.WAITING,
        None,
        None,
        None,
        0,
    )


# -- streams ---------------------------------------------------------------------------------------

REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 25)), min_size=1, max_size=8)


@settings(deadline=None)
@given(
    requests=REQUESTS,
    grant=st.sampled_from([1, 2, 7, EVER]),
    quality=st.sampled_from([None, 0.6, 1.0]),
    ahead=st.booleans(),
    random=st.randoms(),
)
def test_turns_of_any_length_in_any_order_give_the_streams_of_solo_runs(
    toy, requests, grant, quality, ahead, random
):
    """Also where each step runs before the one before it is known."""
    limits = SchedulerLimits(slots=8, context=512, slice=16, step_tokens=64, max_draft=5)
    world = toy.World(limits, quality=quality)
    for number, (length, max_new) in enumerate(requests):
        world.submit(Request(str(number), prompt(length, number), max_new, grant=grant))
    turns = dict.fromkeys(world.requests, 1)
    while not world.scheduler.idle:
        plan = world.plan()
        if plan is None:
            names = [view.request_id for view in world.scheduler.view()]
            for name in random.sample(names, random.randint(1, len(names))):
                world.scheduler.grant(name, grant)
                turns[name] += 1
            continue
        result = world.engine.run(plan)
        while result is not None:
            following = world.ahead(result) if ahead else None
            world.take(world.scheduler.commit(result))
            result = following
        for name, stream in world.streams.items():
            assert len(stream) <= turns[name] * grant, "no token beyond the grant"
    for request in world.requests.values():
        assert world.streams[request.id] == world.expected(request)
        assert world.held.count(request.id) == -(-request.max_new // grant) - 1
    world.check_idle()

"""Fair turns: which requests wait, for how long, and that the output does not depend on it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.sched.widths import fair_widths

LONG = 10_000


def decoding_world(toy, *, runnable, places, quantum, quality=None, seed=0):
    """``runnable`` requests that all decode and never end, ``places`` of them in a step."""
    limits = SchedulerLimits(
        slots=runnable,
        context=20_000,
        slice=8,
        step_tokens=64,
        step_sequences=places,
        quantum=quantum,
        max_draft=3,
    )
    world = toy.World(limits, windows=(), checkpoints=0, quality=quality, seed=seed)
    for number in range(runnable):
        world.submit(Request(str(number), (number + 1,), LONG))
    # One step prefills them all; decoding starts with the next.
    world.step()
    assert all(len(stream) == 1 for stream in world.streams.values())
    return world


scenes = st.fixed_dictionaries(
    {
        "runnable": st.integers(1, 8),
        "places": st.integers(1, 8),
        "quantum": st.integers(1, 9),
        "quality": st.sampled_from([None, 0.5, 1.0]),
        "seed": st.integers(0, 99),
    }
)


def served(plan) -> list[str]:
    return [item.request_id for item in plan.items]


@given(scene=scenes)
def test_nobody_waits_longer_than_the_quanta_of_all_others(toy, scene):
    world = decoding_world(toy, **scene)
    others, places = scene["runnable"] - 1, min(scene["places"], scene["runnable"])
    bound = -(-others * scene["quantum"] // places)
    waited = dict.fromkeys(world.requests, 0)
    for _ in range(3 * bound + 20):
        now = served(world.step())
        assert len(now) == places, "no place stays empty while somebody waits"
        for name in waited:
            waited[name] = 0 if name in now else waited[name] + 1
        assert max(waited.values()) <= bound


@given(scene=scenes)
def test_whoever_waited_when_a_turn_ended_has_a_turn_before_the_next_one(toy, scene):
    world = decoding_world(toy, **scene)
    quantum, waiting_since_turn_of = scene["quantum"], {}
    no_overlap = dict.fromkeys(world.requests, 0)
    places: set[str] = set()
    for _ in range(120):
        before = {name: len(stream) for name, stream in world.streams.items()}
        now = set(served(world.step()))
        for name in now - places:
            assert not waiting_since_turn_of.get(name, set()) - now, "somebody was overtaken"
        for waiting in waiting_since_turn_of.values():
            waiting -= now
        places = set(now)
        for name in now:
            no_overlap[name] += len(world.streams[name]) - before[name]
            if no_overlap[name] >= quantum:
                no_overlap[name] = 0
                places.discard(name)
                waiting_since_turn_of[name] = set(world.requests) - now


def test_one_place_and_no_drafts_is_round_robin(toy):
    world = decoding_world(toy, runnable=3, places=1, quantum=2)
    order = [served(world.step())[0] for _ in range(8)]
    assert order == ["0", "0", "1", "1", "2", "2", "0", "0"]


def test_a_request_brings_its_own_quantum(toy):
    limits = SchedulerLimits(slots=2, context=100, slice=8, step_tokens=64, step_sequences=1)
    world = toy.World(limits, windows=())
    world.submit(Request("a", (1,), 50, quantum=3))
    world.submit(Request("b", (2,), 50, quantum=1))
    world.step()
    assert [served(world.step())[0] for _ in range(8)] == ["a", "a", "a", "b"] * 2


@settings(deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 80), st.integers(1, 30)), min_size=1, max_size=6),
    quanta=st.just((1, 2, 7, LONG)),
    places=st.integers(1, 3),
    quality=st.sampled_from([None, 0.7]),
)
def test_quanta_do_not_show_in_the_output(toy, lengths, quanta, places, quality):
    streams = []
    for quantum in quanta:
        limits = SchedulerLimits(
            slots=4,
            context=128,
            slice=16,
            step_tokens=48,
            step_sequences=places,
            quantum=quantum,
        )
        world = toy.World(limits, quality=quality)
        for number, (length, max_new) in enumerate(lengths):
            world.submit(Request(str(number), tuple(range(length)), max_new))
        world.drain()
        streams.append(world.streams)
    assert all(each == streams[0] for each in streams)
    assert streams[0] == {name: world.expected(request) for name, request in world.requests.items()}


@pytest.mark.parametrize(
    ("wanted", "total", "given_out"),
    [
        ([], 5, []),
        ([3, 3, 3], 9, [3, 3, 3]),
        ([1, 9, 9], 9, [1, 4, 4]),
        ([9, 1, 9], 9, [4, 1, 4]),
        ([5, 5], 0, [0, 0]),
        ([2, 8, 3], 100, [2, 8, 3]),
        ([7, 7, 7], 2, [0, 1, 1]),
    ],
)
def test_rows_are_shared_out_max_min_fair(wanted, total, given_out):
    assert fair_widths(wanted, total) == given_out

"""A request of higher priority takes the place of a running one, whose tokens stay the same."""

from __future__ import annotations

import pytest

from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.request import FinishReason, Request, Status


def prompt(length, seed=1):
    return tuple((seed * 31 + 7 * i) % 29 for i in range(length))


@pytest.fixture
def world(make_world):
    def make(**options):
        return make_world(**{"slots": 2, "preempt": True, "host_rows": None, **options})

    return make


def status_of(world, name):
    return world.scheduler.alive[name].status


def run_two(world, first, second):
    world.submit(Request("a", first, 30, priority=1))
    world.submit(Request("b", second, 30, priority=2))


@pytest.mark.parametrize("windows", [(None,), (None, 70), (70,)])
@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 8, 12])
def test_streams_are_those_without_preemption(world, windows, recurrent, steps):
    """In the middle of a prompt, and while it decodes."""
    here = world(windows=windows, recurrent=recurrent)
    run_two(here, prompt(90), prompt(75, 2))
    for _ in range(steps):
        here.step()
    urgent = Request("urgent", prompt(40, 3), 12)
    here.submit(urgent)
    here.step()
    assert status_of(here, "b") is Status.PREEMPTED
    here.kv_cache.check_integrity()
    here.drain()
    for name in ("a", "b", "urgent"):
        assert here.streams[name] == here.expected(here.requests[name])
    assert here.scheduler.preemptions == 1
    here.check_idle()


def test_nothing_is_computed_twice(world):
    here = world(slots=1)
    here.submit(Request("a", prompt(90), 30, priority=1))
    for _ in range(9):
        here.step()
    here.submit(Request("urgent", prompt(20, 3), 12))
    here.drain()
    rows = [
        (item.start + row)
        for plan in here.plans
        for item in plan.items
        if item.request_id == "a"
        for row in range(item.rows)
    ]
    assert rows == list(range(90 + 29))


def test_the_newest_of_the_lowest_priority_goes(world):
    here = world(slots=3)
    for name, priority in (("a", 1), ("b", 2), ("c", 2)):
        here.submit(Request(name, prompt(20), 40, priority=priority))
    for _ in range(4):
        here.step()
    here.submit(Request("urgent", prompt(20, 3), 12))
    here.step()
    assert [status_of(here, name) for name in "abc"] == [
        Status.DECODE,
        Status.DECODE,
        Status.PREEMPTED,
    ]


def test_equal_priorities_wait(world):
    here = world()
    run_two(here, prompt(20), prompt(20, 2))
    here.step()
    here.submit(Request("late", prompt(20, 3), 5, priority=2))
    for _ in range(5):
        here.step()
    assert here.scheduler.preemptions == 0
    assert status_of(here, "late") is Status.WAITING


def test_without_it_nobody_gives_a_place(make_world):
    here = make_world(slots=1, host_rows=None)
    here.submit(Request("a", prompt(20), 20, priority=1))
    here.step()
    here.submit(Request("urgent", prompt(20, 3), 5))
    here.step()
    assert here.scheduler.preemptions == 0
    here.drain()


def test_without_room_in_host_memory_it_runs_on(world):
    here = world(slots=1, host_rows=1)
    here.submit(Request("a", prompt(200), 20, priority=1))
    for _ in range(20):
        here.step()
    here.submit(Request("urgent", prompt(20, 3), 5))
    here.drain()
    assert here.scheduler.preemptions == 0
    assert here.streams["a"] == here.expected(here.requests["a"])


def test_stored_prefixes_make_room_for_it(world):
    """Each takes three rows of four: two chunks and the recurrent state."""
    here = world(slots=1, host_rows=4, checkpoints=1)
    for seed in (4, 5):
        here.submit(Request(f"old{seed}", prompt(67, seed), 1, checkpoints=(66,)))
        here.drain()
    assert here.kv_cache.host.rows == 3
    here.submit(Request("a", prompt(66), 20, priority=1))
    for _ in range(8):
        here.step()
    here.submit(Request("urgent", prompt(20, 3), 5))
    here.step()
    assert here.scheduler.preemptions == 1
    here.drain()
    assert here.streams["a"] == here.expected(here.requests["a"])
    here.check_idle()


def test_blocks_are_a_reason_too(world):
    here = world(slots=2, blocks=(6,))
    here.submit(Request("a", prompt(200), 60, priority=1))
    for _ in range(16):
        here.step()
    here.submit(Request("urgent", prompt(120, 3), 60))
    here.step()
    assert status_of(here, "a") is Status.PREEMPTED
    here.drain()
    assert here.streams["a"] == here.expected(here.requests["a"])
    here.check_idle()


@pytest.mark.parametrize("quality", [None, 0.5])
@pytest.mark.parametrize("fault", [False, True])
def test_a_preempted_request_can_end(world, fault, quality):
    """Nothing of it is left in its drafter either."""
    here = world(slots=1, quality=quality)
    here.submit(Request("a", prompt(90), 30, priority=1))
    for _ in range(9):
        here.step()
    here.submit(Request("urgent", prompt(20, 3), 12))
    here.step()
    before = list(here.streams["a"])
    if fault:
        here.lose(here.plan())
    else:
        here.cancel("a")
    assert here.finished["a"].reason is (FinishReason.ERROR if fault else FinishReason.CANCELLED)
    assert here.streams["a"] == before
    here.drain()
    here.check_idle()


def test_who_is_held_keeps_its_slot(world):
    here = world(slots=1)
    here.submit(Request("a", prompt(20), 30, priority=1, grant=2))
    for _ in range(6):
        here.step()
    assert status_of(here, "a") is Status.HELD
    here.submit(Request("urgent", prompt(20, 3), 5))
    here.step()
    assert here.scheduler.preemptions == 0
    here.drain()


# -- beside paging ---------------------------------------------------------------------------------

PAGED = {
    "slots": 1,
    "context": 1280,
    "slice": 64,
    "step_tokens": 80,
    "residency": ResidencyRules(chunks=6, sink=1, tail=1, burst=2, tau=9),
    "host_rows": 32,
}
"""Host memory for any one sequence: 20 chunks and the recurrent state."""


def start_low(here):
    """A paged request of low priority, in the middle of its answer."""
    here.submit(Request("low", prompt(1000), 100, priority=1))
    for _ in range(40):
        here.step()
    assert status_of(here, "low") is Status.DECODE


def suspend_low(here):
    """The same, which an urgent request has preempted."""
    start_low(here)
    here.submit(Request("urgent", prompt(20, 3), 5))
    here.step()
    assert status_of(here, "low") is Status.PREEMPTED


def test_one_that_left_for_a_request_that_cannot_come_beside_what_it_left_goes_on(world):
    """Both would wait for ever: the one has the host memory that the other was promised."""
    here = world(**PAGED)
    start_low(here)
    here.submit(Request("high", prompt(30, 3), 1000))
    for _ in range(5):
        here.step()
    assert (status_of(here, "low"), here.scheduler.preemptions) == (Status.DECODE, 1)
    here.drain()
    assert {name: len(stream) for name, stream in here.streams.items()} == {
        "low": 100,
        "high": 1000,
    }
    here.check_idle()


def test_a_preempted_request_goes_on_if_nothing_runs_and_the_first_in_line_cannot(world):
    here = world(**PAGED)
    suspend_low(here)
    here.submit(Request("high", prompt(30, 4), 1000))
    here.drain()
    assert [len(here.streams[name]) for name in ("low", "urgent", "high")] == [100, 5, 1000]
    assert here.scheduler.preemptions == 1
    here.check_idle()


def test_one_that_missed_chunks_says_so_though_it_ends_while_preempted(world):
    here = world(**PAGED)
    suspend_low(here)
    here.cancel("low")
    here.drain()
    assert not here.finished["low"].usage.exact
    assert here.finished["urgent"].usage.exact
    here.check_idle()


def test_of_two_the_less_urgent_makes_room_and_goes_on_beside_the_one_it_left_for(world):
    here = world(**{**PAGED, "slots": 2, "host_rows": 64})
    for name in ("low", "lower"):
        here.submit(Request(name, prompt(1000), 200, priority=1 + len(name)))
    for _ in range(60):
        here.step()
    here.submit(Request("high", prompt(30, 3), 1200))
    here.step()
    states = [status_of(here, name) for name in ("low", "lower", "high")]
    assert states == [Status.DECODE, Status.PREEMPTED, Status.DECODE]
    while "low" not in here.finished:
        here.step()
    here.step()
    assert status_of(here, "lower") is status_of(here, "high") is Status.DECODE
    here.drain()
    assert [len(here.streams[name]) for name in ("low", "lower", "high")] == [200, 200, 1200]
    assert here.scheduler.preemptions == 1
    here.check_idle()


@pytest.mark.parametrize("slots", [2, 3])
def test_blocks_of_a_held_request_that_nobody_can_take_end_no_planning(world, slots):
    """What leaves for an urgent one is not enough, so it comes back at once."""
    here = world(slots=slots, blocks=(8,))
    here.submit(Request("held", prompt(200), 60, grant=1))
    for _ in range(16):
        here.step()
    assert status_of(here, "held") is Status.HELD
    here.submit(Request("low", prompt(20, 2), 40, priority=2))
    for _ in range(4):
        here.step()
    here.submit(Request("high", prompt(280, 3), 60))
    for _ in range(60):
        here.step()
    assert len(here.streams["low"]) == 40
    assert status_of(here, "high") is Status.WAITING
    assert here.scheduler.preemptions == 1
    here.scheduler.grant("held")
    here.drain()
    assert len(here.streams["high"]) == 60
    here.check_idle()


def test_prefixes_that_the_disk_still_writes_end_no_planning(world):
    here = world(**PAGED)
    here.submit(Request("old", prompt(640, 5), 1, checkpoints=(639,)))
    here.drain()
    for entry in list(here.prefixes):
        if entry.checkpoint.resident:
            here.prefixes.send_away(entry)
        entry.checkpoint.pins += 1
    here.submit(Request("low", prompt(300, 2), 40, priority=2))
    for _ in range(8):
        here.step()
    here.submit(Request("high", prompt(1000, 3), 200))
    for _ in range(3):
        here.step()
    assert here.scheduler.running == 1
    for entry in list(here.prefixes):
        entry.checkpoint.pins -= 1
    here.scheduler._admission.freed()  # as the disk's report does
    here.step()
    assert (status_of(here, "low"), status_of(here, "high")) == (Status.PREEMPTED, Status.PREFILL)
    here.drain()
    assert [len(here.streams[name]) for name in ("low", "high")] == [40, 200]

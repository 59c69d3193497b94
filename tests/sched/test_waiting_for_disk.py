"""Requests that wait for the disk: out of the line, and back in their place."""

from __future__ import annotations

import pytest

from kinfolk.sched.events import Blocked
from kinfolk.sched.request import FinishReason, Request


class SlowDisk:
    """Has something for the prompts that begin with a 7, and never gets it into memory."""

    def __init__(self):
        self.jobs = {}

    def fetch(self, start):
        prompt, _ = start
        if prompt.prefix(1) != (7,):
            return None
        return self.jobs.setdefault(prompt.packed, len(self.jobs) + 1)

    def fetched(self, job, *, read):
        return None

    def started(self, match):
        pass

    def spill(self, **_):
        return False

    def forget(self):
        return list(self.jobs.values())


@pytest.fixture
def world(make_world):
    """``world(slots)``: a scheduler with the slow disk."""

    def make(slots=1):
        return make_world(slots=slots, context=320, disk=SlowDisk())

    return make


def request(name, first, **options):
    return Request(name, (first, *range(1, 20)), 3, **options)


def test_those_behind_go_on_and_it_comes_back_to_its_place(world):
    here = world()
    for name, first in (("slow", 7), ("quick", 1), ("last", 2)):
        here.submit(request(name, first))
    here.step()
    assert here.plans[0].items[0].request_id == "quick"
    assert here.scheduler.waiting == 2
    here.scheduler.fetched(1, read=False)
    here.drain()
    order = list(dict.fromkeys(item.request_id for plan in here.plans for item in plan.items))
    assert order == ["quick", "slow", "last"]


def test_it_asks_the_disk_once(world):
    here = world()
    here.submit(request("slow", 7))
    assert here.step() is None
    here.scheduler.fetched(1, read=False)
    here.drain()
    assert here.finished["slow"].usage.reused_from is None


def test_two_wait_for_one_read(world):
    here = world(slots=2)
    here.submit(request("a", 7))
    here.submit(request("b", 7))
    assert here.step() is None
    here.scheduler.fetched(1, read=False)
    here.drain()
    assert set(here.finished) == {"a", "b"}


def test_it_can_be_cancelled(world):
    here = world()
    here.submit(request("slow", 7))
    assert here.step() is None
    here.cancel("slow")
    assert here.finished["slow"].reason is FinishReason.CANCELLED
    assert here.scheduler.idle
    here.scheduler.fetched(1, read=False)
    assert here.step() is None


def test_a_fault_sends_it_back_to_the_line(world):
    here = world()
    here.submit(request("slow", 7))
    here.submit(request("quick", 1))
    here.lose(here.plan())
    assert here.finished["quick"].error
    here.drain()
    assert here.finished["slow"].error is None


def test_the_slot_that_it_asks_for_is_kept_for_it(world):
    here = world(slots=2)
    here.submit(request("slow", 7, slot=1))
    here.submit(request("quick", 1))
    here.step()
    assert here.plans[0].items[0].lease.slot == 2
    here.scheduler.fetched(1, read=False)
    here.drain()


def test_it_is_not_blocked_by_those_who_are_held(world):
    here = world(slots=2)
    here.submit(request("held", 1, grant=1))
    here.step()
    here.step()
    assert here.held == ["held"]
    here.submit(request("slow", 7))
    here.submit(request("ends", 2))
    here.step()
    assert Blocked("slow") not in here.scheduler.blocked()
    here.scheduler.fetched(1, read=False)
    here.drain()
    assert set(here.finished) == {"held", "slow", "ends"}

"""A spare slot for recurrent state changes where checkpoints are stored, and nothing else."""

from __future__ import annotations

import random

import pytest

from kinfolk.sched.request import Request
from kinfolk.state.operations import CopyRecurrent, SaveRecurrent, StoreRecurrent

SYSTEM = 20


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 11 + index * index) % 29 for index in range(length))


def overwritten(plan) -> list[int]:
    """Slots that the operations of a plan write behind their save."""
    saved, found = set(), []
    for each in plan.operations:
        match each:
            case SaveRecurrent(slot, _):
                saved.add(slot)
            case StoreRecurrent(slot) | CopyRecurrent(_, slot):
                found += [slot] if slot in saved else []
    return found


@pytest.mark.parametrize("checkpoints", [1, 2, 3])
@pytest.mark.parametrize("spare_slots", [0, 1])
@pytest.mark.parametrize("at_the_end", [True, False])
def test_no_step_writes_a_slot_whose_save_is_in_its_plan(
    make_world, checkpoints, spare_slots, at_the_end
):
    world = make_world(checkpoints=checkpoints, spare_slots=spare_slots, host_rows=None)
    for seed in range(6):
        forks = () if at_the_end else (30,)
        world.submit(Request(str(seed), prompt(40, seed), 3, checkpoints=forks, keep=at_the_end))
        world.drain()
    world.submit(Request("last", prompt(40), 1))  # its plan has what the end of another left
    world.drain()
    demotions = world.kv_cache.checkpoints.demotions
    assert demotions == 6 - checkpoints
    waits = sum(map(len, map(overwritten, world.plans)))
    assert waits == (0 if spare_slots else demotions)
    assert sum(held.resident for _, held in world.prefixes.items()) == checkpoints
    world.check_idle()


@pytest.mark.parametrize("seed", range(8))
def test_the_same_prefixes_are_kept_in_the_same_places(make_world, seed):
    chance = random.Random(seed)
    windows = chance.choice([(None,), (None, 70), ()])
    options = {
        "windows": windows,
        "slots": 3,
        "slice": 48,
        "step_tokens": 64,
        "checkpoint_every": chance.choice([0, 64]),
        "checkpoints": chance.randint(1, 3),
        "host_rows": chance.choice([None, 0, 20]),
        "blocks": chance.choice([None, (12,) * len(windows)]),
        "preempt": chance.random() < 0.5,
    }
    worlds = [make_world(**options, spare_slots=count) for count in (0, 1)]
    told: dict[str, tuple[int, ...]] = {}
    for number in range(40):
        start = told.get(chance.choice(sorted(told) or [""]), prompt(SYSTEM))
        known = (*start[:250], *prompt(chance.randint(1, 90), number))
        request = Request(
            str(number),
            known,
            chance.randint(1, 12),
            checkpoints=(SYSTEM, len(known) - 1)[: chance.randint(0, 2)],
            keep=chance.random() < 0.8,
            priority=chance.choice([0, 0, 1]),
        )
        for world in worlds:
            world.submit(request)
        for _ in range(chance.randint(0, 12)):
            for world in worlds:
                world.step()
            assert decided(worlds[0]) == decided(worlds[1])
        told |= {
            name: (*worlds[0].requests[name].prompt, *worlds[0].streams[name])
            for name in worlds[0].finished
        }
    for world in worlds:
        world.drain()
    assert decided(worlds[0]) == decided(worlds[1])
    assert [each.usage for each in worlds[0].finished.values()] == [
        each.usage for each in worlds[1].finished.values()
    ]
    assert worlds[0].kv_cache.checkpoints.demotions > 0 or options["host_rows"] == 0
    for world in worlds:
        world.check_idle()


def decided(world):
    """What is stored where, what went, and what requests have got so far."""
    prefixes = [(len(key), held.resident) for key, held in world.prefixes.items()]
    host = world.kv_cache.host
    return prefixes, world.prefixes.drops, (host.used, host.rows), world.streams

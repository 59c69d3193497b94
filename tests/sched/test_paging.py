"""Paged sequences beside one another: each emits what it emits alone, whatever the others do."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from kinfolk.errors import RequestError
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.request import Request
from kinfolk.types import CHUNK_POSITIONS

WALKS = int(os.environ.get("PAGING_WALKS", "12"))
"""Random histories of a scheduler for each layout."""

RULES = ResidencyRules(chunks=6, sink=1, tail=1, burst=2, tau=9, scorers=("toy",))
LAYOUTS = [((None,), True), ((None,), False), ((None, 70), True)]


def requests_of(source, count):
    found = []
    for number in range(count):
        size = source.choice([40, 300, 500, 900])
        prompt = tuple(source.randrange(29) for _ in range(size))
        found.append(Request(str(number), prompt, source.randint(1, 150)))
    return found


def run_alone(make_world, request, windows, recurrent, rules, options):
    world = make_world(
        slots=1, windows=windows, recurrent=recurrent, residency=rules, host_rows=None, **options
    )
    world.submit(replace(request, id="alone"))
    world.drain()
    return world.streams["alone"]


@pytest.mark.parametrize(("windows", "recurrent"), LAYOUTS, ids=str)
@pytest.mark.parametrize("scored", ["policy", "core", ""])
def test_in_company_each_emits_what_it_emits_alone(make_world, windows, recurrent, scored):
    """Also with the books of the core's scorer, whose engine checks what it scores."""
    rules = replace(RULES, scorers=() if not scored else ("toy",), previews=scored == "core")
    moved = 0
    for seed in range(WALKS):
        source = random.Random(seed)
        size = source.choice([16, 64, 100, 256])
        options = {"context": 1100, "slice": size, "step_tokens": size + 40}
        slots = source.randint(1, 4)
        blocks = (source.randint(6, 6 * slots), 40)[: len(windows)]
        world = make_world(
            slots=slots,
            windows=windows,
            recurrent=recurrent,
            residency=rules,
            blocks=blocks,
            host_rows=source.choice([None, 40]),
            quantum=source.choice([1, 5, 1000]),
            preempt=source.random() < 0.5,
            **options,
        )
        waiting, cancelled = requests_of(source, 6), set()
        asked = list(waiting)
        while waiting or not world.scheduler.idle:
            if waiting and source.random() < 0.2:
                request = replace(waiting.pop(), priority=source.randrange(2))
                world.submit(request)
            if source.random() < 0.01 and world.scheduler.alive:
                victim = source.choice(list(world.scheduler.alive))
                cancelled.add(victim)
                world.cancel(victim)
            walk(world, source)
            world.kv_cache.check_integrity()
        for request in asked:
            alone = run_alone(make_world, request, windows, recurrent, rules, options)
            stream = world.streams[request.id]
            assert stream == (alone[: len(stream)] if request.id in cancelled else alone)
        moved += world.scheduler.prefix_stats()[
            "kvflash_recalls" if scored else "kvflash_evictions"
        ]
        world.check_idle()
    assert moved > 8 * WALKS


def walk(world, source):
    """A step, or two of which the second is planned before the first is committed."""
    plan = world.plan()
    if plan is None:
        return
    result = world.engine.run(plan)
    following = world.ahead(result) if source.random() < 0.5 else None
    world.take(world.scheduler.commit(result))
    if following is not None:
        world.take(world.scheduler.commit(following))


@pytest.mark.parametrize("previews", [False, True])
@pytest.mark.parametrize(("windows", "recurrent"), LAYOUTS, ids=str)
def test_chats_longer_than_the_budget_start_from_their_last_turn(
    make_world, windows, recurrent, previews
):
    """Prefixes of paged sequences are in host memory, and nothing that missed something is ever
    given to a request that fits its budget."""
    for seed in range(WALKS):
        source = random.Random(seed)
        world = make_world(
            slots=2,
            windows=windows,
            recurrent=recurrent,
            residency=replace(RULES, previews=previews),
            host_rows=source.choice([None, 60]),
            context=1400,
            slice=128,
            step_tokens=200,
            checkpoint_every=source.choice([0, 256]),
        )
        known, last = [source.randrange(29) for _ in range(400)], 64
        for turn in range(4):
            name, fork = f"turn {turn}", len(known) - 10
            world.submit(Request(name, tuple(known), 30, checkpoints=(fork,), keep=True))
            world.drain()
            used = world.finished[name].usage
            assert used.reused >= last - 64, (seed, turn)
            assert used.exact == (turn == 0 and len(known) < 5 * CHUNK_POSITIONS)
            known += world.streams[name]
            last = len(known)
            known += [source.randrange(29) for _ in range(100)]
            world.kv_cache.check_integrity()
        short = Request("short", tuple(known[:330]), 20)
        world.submit(short)
        world.drain()
        assert world.finished["short"].usage.exact
        assert world.streams["short"] == world.expected(short)
        world.check_idle()


@pytest.mark.parametrize(("windows", "recurrent"), LAYOUTS, ids=str)
def test_all_that_is_kept_can_be_gone_on_from(make_world, windows, recurrent):
    """At every length around the ends of chunks, the budget and the context."""
    context = 832
    edges = (6 * CHUNK_POSITIONS, 8 * CHUNK_POSITIONS, context - 40)
    for length in (edge + step for edge in edges for step in (-2, -1, 0, 1, 2)):
        world = make_world(
            slots=1, windows=windows, recurrent=recurrent, residency=RULES, context=context,
            slice=128, step_tokens=200, host_rows=80,
        )  # fmt: skip
        prompt = tuple(n * n % 29 for n in range(length))
        world.submit(Request("a", prompt, 9, keep=True))
        world.drain()
        known = (*prompt, *world.streams["a"])
        assert len(known) < context - 1
        world.submit(Request("b", (*known, 5), 3))
        world.drain()
        used = world.finished["b"].usage
        assert world.finished["b"].error is None
        # The last token of an answer is in no state; a partly filled chunk may be read again.
        assert used.reused >= len(known) - 1 - (0 if recurrent or None not in windows else 64)
        world.check_idle()


def test_what_the_host_has_no_room_for_is_refused_with_the_arithmetic(make_world):
    world = make_world(context=1100, residency=RULES, host_rows=8)
    with pytest.raises(RequestError, match=r"need \(6,\) blocks.*17 pages of host memory of 8"):
        world.submit(Request("a", (1,) * 1000, 50))

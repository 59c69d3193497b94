"""Several answers to one prompt: it is computed once, whatever happens to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.sched.request import FinishReason, Request

SLICE = 16
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 150)
LAYOUTS = [((None,), True), ((None,), False), ((None, 70), True), ((100,), True), ((), True)]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 11 + index * index) % 29 for index in range(length))


def choices(tokens, count, **rest):
    first = Request("0", tokens, 9, followers=count - 1, **rest)
    return [
        first,
        *(replace(first, id=str(i), follows="0", followers=0) for i in range(1, count)),
    ]


def prefilled(world) -> int:
    return sum(
        len(item.tokens)
        for plan in world.plans
        for item in plan.items
        if item.kind.name == "PREFILL"
    )


def assert_answered(world, requests):
    for request in requests:
        assert world.streams[request.id] == world.expected(request)


@pytest.mark.parametrize(("windows", "recurrent"), LAYOUTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_is_computed_once_for_all_its_answers(make_world, windows, recurrent, length):
    world = make_world(slots=3, windows=windows, recurrent=recurrent)
    requests = choices(prompt(length), 5)
    for request in requests:
        world.submit(request)
    world.drain()
    assert_answered(world, requests)
    assert prefilled(world) == length + 4
    assert [world.finished[each.id].usage.reused for each in requests] == [0, *[length - 1] * 4]
    assert len(world.prefixes) == 0, "what was kept for the answers goes with the last one"
    world.check_idle()


def test_what_is_kept_anyway_stays(make_world):
    world = make_world()
    requests = choices(prompt(40), 3, checkpoints=(39,))
    for request in requests:
        world.submit(request)
    world.drain()
    assert [len(key) for key, _ in world.prefixes.items()] == [39]


def test_those_who_wait_for_a_prompt_block_nobody(make_world):
    world = make_world(slots=2, slice=16, step_tokens=40)
    for request in choices(prompt(120), 4):
        world.submit(request)
    other = Request("other", prompt(10, 3), 2)
    world.submit(other)
    assert world.scheduler.waiting == 5
    world.step()
    assert world.streams["other"], "it came last and starts in the first step"
    world.drain()
    assert_answered(world, [other])


def test_a_late_answer_starts_where_the_others_did(make_world):
    """It is asked for when the first one is under way, or was."""
    for steps in (1, 3, 5, 30):
        world = make_world()
        first, late = choices(prompt(50), 2)
        world.submit(first)
        for _ in range(steps):
            world.step()
        world.submit(late)
        world.drain()
        assert_answered(world, [first, late])
        assert world.finished["1"].usage.reused == 49
        world.check_idle()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_next_one_computes_the_prompt_if_the_first_one_is_cancelled(make_world, steps):
    world = make_world()
    requests = choices(prompt(50), 4)
    for request in requests:
        world.submit(request)
    for _ in range(steps):
        world.step()
    world.cancel("0")
    world.drain()
    assert_answered(world, requests[1:])
    assert [world.finished[str(i)].usage.reused for i in (1, 2, 3)] == [0, 49, 49]
    world.check_idle()


def test_the_next_one_computes_the_prompt_if_the_first_one_fails(make_world):
    world = make_world()
    requests = choices(prompt(50), 3)
    for request in requests:
        world.submit(request)
    world.step(failing=frozenset({"0"}))
    assert world.finished["0"].reason is FinishReason.ERROR
    world.drain()
    assert_answered(world, requests[1:])
    world.check_idle()


def test_a_fault_leaves_those_who_wait(make_world):
    world = make_world()
    requests = choices(prompt(50), 3)
    for request in requests:
        world.submit(request)
    world.lose(world.plan())
    world.drain()
    assert world.finished["0"].reason is FinishReason.ERROR
    assert_answered(world, requests[1:])
    world.check_idle()


def test_cancelling_all_that_wait_leaves_nothing(make_world):
    world = make_world()
    for request in choices(prompt(50), 4):
        world.submit(request)
    world.step()
    for victim in ("2", "1", "3"):
        world.cancel(victim)
    world.drain()
    assert len(world.prefixes) == 0
    assert world.scheduler.waiting == 0
    world.check_idle()


def test_without_checkpoints_each_answer_computes_its_prompt(make_world):
    """So it is with --batch-invariant, which allows none."""
    world = make_world(checkpoints=0, slots=4)
    requests = choices(prompt(50), 3)
    for request in requests:
        world.submit(request)
    assert len({item.request_id for item in world.step().items}) > 1, "none waits for another"
    world.drain()
    assert_answered(world, requests)
    assert prefilled(world) == 150


def test_an_answer_to_another_prompt_follows_nobody(make_world):
    world = make_world()
    first = choices(prompt(50), 2)[0]
    other = Request("other", prompt(50, 1), 5, follows="0")
    world.submit(first)
    world.submit(other)
    world.drain()
    assert_answered(world, [first, other])
    assert world.finished["other"].usage.reused == 0


def test_an_id_that_is_used_again_takes_nobody_away(make_world):
    """The first answer is cancelled and its id given to another prompt while others wait."""
    world = make_world()
    requests = choices(prompt(50), 3)
    for request in requests:
        world.submit(request)
    world.step()
    world.cancel("0")
    world.scheduler.submit(Request("0", prompt(20, 4), 3, followers=2))
    for _ in range(60):
        plan = world.plan()
        if plan is None:
            break
        result = world.engine.run(plan)
        events = world.scheduler.commit(result)
        world.take([event for event in events if event.request_id != "0"])
    assert_answered(world, requests[1:])

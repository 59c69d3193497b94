"""Which prefixes of requests are kept: forks, answers, a grid in long prompts, and any chunk of
them where that is possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.sched.request import Request

SLICE = 16
EVERY = 40
DENSE = {"windows": (None,), "recurrent": False}


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 11 + index * index) % 29 for index in range(length))


def run(world, *requests: Request) -> None:
    for request in requests:
        world.submit(request)
    world.drain()


def lengths(world) -> list[int]:
    return sorted(len(key) for key, _ in world.prefixes.items())


# -- the grid of a long prompt --------------------------------------------------------------------


@pytest.mark.parametrize("every", [16, 40, 64])
@pytest.mark.parametrize(
    ("windows", "recurrent"), [((None,), True), ((None, 70), True), ((), True)]
)
def test_a_long_prompt_leaves_a_grid(make_world, windows, recurrent, every):
    world = make_world(windows=windows, recurrent=recurrent, checkpoints=20, checkpoint_every=every)
    run(world, Request("a", prompt(200), 1, keep=True))
    assert lengths(world) == [*range(every, 200, every), 200]
    again = Request("b", (*prompt(190), 5), 9)
    run(world, again)
    assert world.streams["b"] == world.expected(again)
    assert world.finished["b"].usage.reused == 190 // every * every
    world.check_idle()


def test_a_prompt_that_is_cancelled_late_is_of_use(make_world):
    world = make_world(checkpoints=3, checkpoint_every=EVERY)
    request = Request("a", prompt(300), 9, checkpoints=(290,), keep=True)
    world.submit(request)
    while world.scheduler.alive["a"].computed < 250:
        world.step()
    world.cancel("a")
    run(world, replace(request, id="b"))
    assert world.finished["b"].usage.reused == 240
    assert world.streams["b"] == world.expected(request)


def test_the_grid_takes_one_place_if_there_is_but_one(make_world):
    """The deepest point is left, and the fork after it."""
    world = make_world(checkpoints=2, checkpoint_every=EVERY)
    run(world, Request("other", prompt(50, 1), 1, checkpoints=(45,)))
    world.submit(Request("a", prompt(300), 9, keep=True))
    while world.scheduler.alive["a"].computed < 250:
        world.step()
    world.cancel("a")
    assert lengths(world) == [45, 240]


def test_forks_have_no_point_of_the_grid_beside_them(make_world):
    world = make_world(checkpoints=20, checkpoint_every=EVERY)
    run(world, Request("a", prompt(130), 1, checkpoints=(30, 115), keep=True))
    assert lengths(world) == [30, 80, 115, 130]


def test_a_request_that_keeps_nothing_has_no_grid(make_world):
    world = make_world(checkpoints=20, checkpoint_every=EVERY)
    run(world, Request("a", prompt(300), 5))
    assert lengths(world) == []


def test_slices_are_the_same_with_a_grid(make_world):
    sizes = []
    for every in (0, EVERY):
        world = make_world(checkpoints=20, checkpoint_every=every)
        run(world, Request("a", prompt(300), 1, keep=True))
        sizes.append([len(item.tokens) for plan in world.plans for item in plan.items])
    assert sizes[0] == sizes[1]


# -- any chunk ------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [1, 63, 64, 65, 127, 128, 129, 191, 192, 199, 200])
def test_a_family_without_recurrent_state_starts_at_any_chunk(make_world, same):
    world = make_world(**DENSE)
    run(world, Request("a", prompt(200), 1, checkpoints=(200,)))
    different = (prompt(201)[same] + 1) % 29
    other = Request("b", (*prompt(same), different, *prompt(30, 3)), 20)
    run(world, other)
    assert world.streams["b"] == world.expected(other)
    assert world.finished["b"].usage.reused == (200 if same == 200 else same // 64 * 64)
    world.check_idle()


def test_the_same_prompt_again_leaves_one_chunk_at_most(make_world):
    world = make_world(**DENSE)
    request = Request("a", prompt(128), 5, checkpoints=(128,))
    run(world, request)
    run(world, replace(request, id="b"))
    assert world.finished["b"].usage.reused == 64
    assert world.streams["b"] == world.streams["a"]


@pytest.mark.parametrize(("windows", "recurrent"), [((None,), True), ((None, 70), False)])
def test_other_families_start_where_all_their_state_is(make_world, windows, recurrent):
    world = make_world(windows=windows, recurrent=recurrent)
    run(world, Request("a", prompt(200), 1, checkpoints=(100, 200)))
    other = Request("b", (*prompt(199), 28), 5)
    run(world, other)
    assert world.finished["b"].usage.reused == 100
    assert world.streams["b"] == world.expected(other)


def test_a_sequence_goes_on_while_the_prefix_that_it_shares_is_dropped(make_world):
    world = make_world(**DENSE, slots=1, blocks=(6,))
    run(world, Request("a", prompt(200), 1, checkpoints=(200,)))
    other = Request("b", (*prompt(130), 28), 100)
    run(world, other)
    assert world.finished["b"].usage.reused == 128
    assert world.streams["b"] == world.expected(other)
    third = Request("c", prompt(250, 7), 50)
    run(world, third)
    assert world.streams["c"] == world.expected(third)
    world.check_idle()


def test_a_side_request_that_needs_blocks_takes_the_chat_that_it_came_from_last(make_world):
    """Of twelve blocks it needs six, of which it shares one. Two chats hold four each."""
    world = make_world(slots=1, blocks=(12,), checkpoints=8)
    chat = Request("chat", (*prompt(64), *prompt(200, 1)), 1, checkpoints=(64, 256))
    run(world, chat)
    for again in range(4):
        run(world, Request(f"other {again}", prompt(250, 5), 1, checkpoints=(240,)))
    order = [each.length for each in world.prefixes.victims()]
    assert order.index(256) < order.index(240), "to any other request it is worth less"
    run(world, Request("side", (*prompt(64), *prompt(300, 2)), 60))
    assert world.finished["side"].usage.reused == 64
    assert lengths(world) == [64, 256]
    run(world, replace(chat, id="again"))
    assert world.finished["again"].usage.reused == 256

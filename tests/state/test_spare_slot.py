"""Recurrent state that leaves the device is copied to host memory beside the steps: what is stored
next is not stored in its slot, if there is another one."""

from __future__ import annotations

import pytest
from lazy_streams import LazyCopies

from kinfolk.state.operations import CopyRecurrent, SaveRecurrent, StoreRecurrent

HISTORY = list(range(1, 101))


def grown(toy, length, start=0):
    lease = toy.kv_cache.open(300)
    toy.grow(lease, HISTORY[start : start + length], [])
    return lease


def only(operations, kind):
    (found,) = (each for each in operations if isinstance(each, kind))
    return found


def exchanged(toy, lease, held, length):
    """The operations of a plan in which ``held`` leaves, and a state is stored after ``length``
    positions, now or in the step."""
    store = toy.kv_cache.checkpoints
    assert not store.can_take(lease, length)
    assert store.can_take(lease, length, [held])
    store.demote(held)
    taken = store.take(lease, length)
    toy.kv_cache.check_integrity()
    return taken, toy.apply()


@pytest.mark.parametrize("checkpoints", [1, 2])
@pytest.mark.parametrize("inside", [True, False])
def test_a_state_is_not_stored_where_another_one_is_being_saved(
    make_toy_cache, checkpoints, inside
):
    streams = LazyCopies()
    toy = make_toy_cache(checkpoints=checkpoints, spare_slots=1, streams=streams)
    store = toy.kv_cache.checkpoints
    lease = grown(toy, 10)
    held = [store.take(lease, 10) for _ in range(checkpoints)]
    toy.apply()
    saved = []
    for length in range(20, 100, 10):
        if inside:
            toy.kv_cache.tables.extend(lease, length)
        else:
            toy.grow(lease, HISTORY[length - 10 : length], HISTORY[: length - 10])
        taken, operations = exchanged(toy, lease, held.pop(0), length)
        held.append(taken)
        save = only(operations, SaveRecurrent)
        stored = only(operations, StoreRecurrent if inside else CopyRecurrent)
        assert (stored.slot if inside else stored.target) == taken.slot != save.slot
        assert saved[-1:] in ([], [taken.slot]), "the slot that the one before left"
        assert streams.pending == 1, "only the copy before this one was waited for"
        saved.append(save.slot)
        if inside:
            toy.write(lease, length - 10, HISTORY[length - 10 : length])
            toy.set_sum(lease.slot, HISTORY[:length])
            toy.set_sum(taken.slot, HISTORY[:length])
            toy.kv_cache.tables.advance(lease, length)
    toy.kv_cache.tables.release(lease)
    for checkpoint in held:
        again = toy.kv_cache.open(300, checkpoint)
        toy.apply()
        toy.check(again, HISTORY[: checkpoint.length])


def test_without_a_spare_slot_it_is_and_the_step_waits(make_toy_cache):
    streams = LazyCopies()
    toy = make_toy_cache(checkpoints=1, streams=streams)
    lease = grown(toy, 10)
    held = toy.kv_cache.checkpoints.take(lease, 10)
    toy.grow(lease, HISTORY[10:20], HISTORY[:10])
    taken, operations = exchanged(toy, lease, held, 20)
    assert only(operations, SaveRecurrent).slot == taken.slot
    assert streams.pending == 0


class Ordered(LazyCopies):
    """Notes what is enqueued."""

    def __init__(self):
        super().__init__()
        self.enqueued = []

    def on_main(self, action):
        self.enqueued.append("main")
        super().on_main(action)

    def on_copies(self, action):
        self.enqueued.append("copy")
        return super().on_copies(action)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_save_is_launched_behind_the_step_unless_the_step_writes_its_slot(make_toy_cache, spare):
    streams = Ordered()
    toy = make_toy_cache(checkpoints=1, spare_slots=spare, streams=streams)
    store, lease = toy.kv_cache.checkpoints, grown(toy, 10)
    held = store.take(lease, 10)
    toy.apply()
    toy.kv_cache.tables.extend(lease, 20)
    store.demote(held)
    taken = store.take(lease, 15)
    streams.enqueued.clear()
    toy.apply(step_follows=True)
    toy.set_sum(lease.slot, HISTORY[:20])
    toy.set_sum(taken.slot, HISTORY[:15])
    assert toy.state.take_arrived() == (() if spare else (held.identity,))
    toy.state.launch_saves()
    assert streams.enqueued == (["main", "main", "copy"] if spare else ["copy", "main", "main"])
    streams.drain()
    (row,) = toy.state.host.parts(held.identity)
    assert row.numpy().view("f").tolist()[0] == sum(HISTORY[:10])


def test_memory_of_a_save_that_was_not_launched_goes_to_no_earlier_copy(make_toy_cache):
    """Its bytes are dropped in the same plan, and their host memory is given to a save after it."""
    streams = LazyCopies()
    toy = make_toy_cache(slots=2, checkpoints=2, host_rows=2, streams=streams)
    store, lease = toy.kv_cache.checkpoints, grown(toy, 10)
    first = store.take(lease, 10)
    toy.grow(lease, HISTORY[10:20], HISTORY[:10])
    second = store.take(lease, 20)
    toy.apply()
    store.demote(first)
    store.drop(first)
    store.demote(second)
    toy.apply(step_follows=True)
    toy.state.launch_saves()
    streams.drain()
    (row,) = toy.state.host.parts(second.identity)
    assert row.numpy().view("f").tolist()[0] == sum(HISTORY[:20])


def test_what_left_comes_back_whole(make_toy_cache):
    """Its slot was written by the next but one: after its copy."""
    toy = make_toy_cache(blocks=(20,), slots=2, checkpoints=1, spare_slots=1, streams=LazyCopies())
    store, held = toy.kv_cache.checkpoints, []
    for turn in range(6):
        lease = grown(toy, 10, start=10 * turn)
        if held:
            store.demote(held[-1])
        held.append(store.take(lease, 10))
        toy.kv_cache.tables.release(lease)
        toy.apply()
    for turn, checkpoint in enumerate(held):
        lease = toy.kv_cache.open(300, checkpoint)
        toy.apply()
        toy.check(lease, HISTORY[10 * turn : 10 * turn + 10])
        toy.kv_cache.tables.release(lease)


def test_a_slot_without_a_copy_is_used_before_one_with(make_toy_cache):
    toy = make_toy_cache(checkpoints=3)
    store, lease = toy.kv_cache.checkpoints, grown(toy, 10)
    first, second, third = (store.take(lease, 10) for _ in range(3))
    dropped = second.slot
    store.demote(first)
    store.drop(second)
    store.demote(third)
    assert store.take(lease, 10).slot == dropped


def test_a_paged_sequence_that_missed_something_stages_its_state_in_the_spare_slot(make_toy_cache):
    """It goes on without waiting for the copy, although checkpoints have all other slots."""
    streams = LazyCopies()
    toy = make_toy_cache(checkpoints=1, spare_slots=1, streams=streams)
    store, tables = toy.kv_cache.checkpoints, toy.kv_cache.tables
    other = grown(toy, 10)
    store.take(other, 10)
    lease = toy.kv_cache.open(300, resident=4)
    toy.grow(lease, HISTORY, [])
    tables.evict(lease, 0)
    toy.apply()
    taken = store.take(lease, len(HISTORY))
    copy, save = (each for each in toy.apply() if isinstance(each, CopyRecurrent | SaveRecurrent))
    assert copy == CopyRecurrent(lease.slot, save.slot)
    assert save == SaveRecurrent(store.free[0], taken.identity)
    toy.set_sum(lease.slot, [-1])
    streams.drain()
    (row,) = toy.state.host.parts(taken.identity)
    assert row.numpy().view("f").tolist()[0] == sum(HISTORY)

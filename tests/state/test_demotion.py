"""Checkpoints that leave the device: what is saved, loaded, shared and counted, rule by rule."""

from __future__ import annotations

import pytest
from lazy_streams import LazyCopies

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    LoadRecurrent,
    MapChunk,
    SaveBlock,
    SaveRecurrent,
)

HISTORY = list(range(1, 201))


def grown(toy, length=200, positions=300):
    lease = toy.kv_cache.open(positions)
    for start in range(0, length, 100):
        toy.grow(lease, HISTORY[start : min(start + 100, length)], HISTORY[:start])
    return lease


def kept(toy, length=200, *, ended=True):
    """A checkpoint, whose sequence ends if ``ended``."""
    lease = grown(toy, length)
    checkpoint = toy.kv_cache.checkpoints.take(lease, length)
    if ended:
        toy.kv_cache.tables.release(lease)
    toy.apply()
    return checkpoint


def of_kind(operations, *kinds):
    return [each for each in operations if isinstance(each, kinds)]


# -- leaving --------------------------------------------------------------------------------------


def test_a_demoted_checkpoint_gives_up_its_places_and_keeps_its_bytes(make_toy_cache):
    toy = make_toy_cache(windows=(None, 70), blocks=(12, 12), checkpoints=1)
    checkpoint = kept(toy)
    slot, store = checkpoint.slot, toy.kv_cache.checkpoints
    store.demote(checkpoint)
    operations = toy.apply()
    assert of_kind(operations, SaveRecurrent) == [SaveRecurrent(slot, checkpoint.identity)]
    assert len(of_kind(operations, SaveBlock)) == 4 + 2
    assert [toy.kv_cache.tables.available(pool) for pool in (0, 1)] == [12, 12]
    assert list(store.free) == [slot]
    assert toy.state.saved_rows == toy.kv_cache.host.rows == 7
    assert store.demotions == 1
    toy.kv_cache.check_integrity()


def test_what_others_have_on_the_device_is_saved_when_the_last_of_them_ends(make_toy_cache):
    toy = make_toy_cache()
    checkpoint = kept(toy, 128, ended=False)
    (lease,) = (seq.lease for seq in toy.kv_cache.tables.sequences.values())
    toy.kv_cache.checkpoints.demote(checkpoint)
    assert not of_kind(toy.apply(), SaveBlock)
    assert toy.kv_cache.host.rows == 3, "room is kept for the chunks, since the sequence may end"
    toy.kv_cache.tables.release(lease)
    assert len(of_kind(toy.apply(), SaveBlock)) == 2
    assert toy.kv_cache.host.rows == 3
    again = toy.kv_cache.open(200, checkpoint)
    toy.apply()
    toy.check(again, HISTORY[:128])


def test_a_chunk_that_is_still_being_written_is_not_saved_too_early(make_toy_cache):
    """Both checkpoints share the chunk; the second needs rows that were written after the first
    was demoted."""
    toy = make_toy_cache()
    lease = toy.kv_cache.open(400)
    toy.grow(lease, HISTORY[:70], [])
    store = toy.kv_cache.checkpoints
    first = store.take(lease, 70)
    store.demote(first)
    assert not of_kind(toy.apply(), SaveBlock)
    toy.kv_cache.check_integrity()
    toy.grow(lease, HISTORY[70:100], HISTORY[:70])
    second = store.take(lease, 100)
    store.demote(second)
    toy.kv_cache.tables.release(lease)
    assert len(of_kind(toy.apply(), SaveBlock)) == 2
    for checkpoint in (second, first):
        again = toy.kv_cache.open(300, checkpoint)
        toy.apply()
        toy.check(again, HISTORY[: checkpoint.length])


def test_a_checkpoint_leaves_once_and_not_after_it_was_dropped(make_toy_cache):
    toy = make_toy_cache()
    store, checkpoint = toy.kv_cache.checkpoints, kept(toy)
    store.demote(checkpoint)
    with pytest.raises(StateError, match="only a checkpoint on the device"):
        store.demote(checkpoint)
    assert not store.can_demote(checkpoint)
    store.drop(checkpoint)
    assert len(of_kind(toy.apply(), DropSaved)) == 5
    assert toy.state.saved_rows == toy.kv_cache.host.used == 0
    with pytest.raises(StateError, match="only a checkpoint on the device"):
        store.demote(checkpoint)


def test_without_recurrent_state_only_chunks_are_saved(make_toy_cache):
    toy = make_toy_cache(recurrent=False)
    checkpoint = kept(toy)
    toy.kv_cache.checkpoints.demote(checkpoint)
    assert not of_kind(toy.apply(), SaveRecurrent)
    assert toy.kv_cache.host.rows == 4
    lease = toy.kv_cache.open(300, checkpoint)
    toy.apply()
    toy.check(lease, HISTORY)
    toy.kv_cache.checkpoints.drop(checkpoint)
    toy.kv_cache.check_integrity()


def test_a_block_that_is_being_saved_is_allocated_last(make_toy_cache):
    """Who writes it waits for the copy."""
    streams = LazyCopies()
    toy = make_toy_cache(blocks=(6,), recurrent=False, streams=streams)
    checkpoint = kept(toy, 100)
    toy.kv_cache.checkpoints.demote(checkpoint)
    other = toy.kv_cache.open(256)
    toy.kv_cache.tables.extend(other, 256)
    operations = toy.apply()
    saved = {each.block for each in of_kind(operations, SaveBlock)}
    mapped = {each.block for each in of_kind(operations, MapChunk)}
    assert (len(saved), len(mapped)) == (2, 4)
    assert not saved & mapped
    assert streams.pending == 2, "no copy is waited for"


# -- coming back ----------------------------------------------------------------------------------


def test_a_sequence_starts_from_the_host(make_toy_cache):
    """Full chunks are loaded to be shared, a partial one into a block of its own."""
    toy = make_toy_cache()
    checkpoint = kept(toy)
    toy.kv_cache.checkpoints.demote(checkpoint)
    toy.apply()
    for own in (5, 6):
        lease = toy.kv_cache.open(400, checkpoint)
        operations = toy.apply()
        loads = of_kind(operations, LoadBlock)
        assert len(loads) == (4 if own == 5 else 1)
        assert of_kind(operations, LoadRecurrent) == [
            LoadRecurrent(checkpoint.identity, lease.slot)
        ]
        assert not of_kind(operations, CopyRecurrent, CopyBlock)
        toy.check(lease, HISTORY)
        toy.grow(lease, [own], HISTORY)
        toy.check(lease, [*HISTORY, own])
    toy.kv_cache.check_integrity()


def test_what_is_still_on_the_device_is_shared_and_copied_there(make_toy_cache):
    toy = make_toy_cache()
    checkpoint = kept(toy, 100, ended=False)
    toy.kv_cache.checkpoints.demote(checkpoint)
    toy.apply()
    lease = toy.kv_cache.open(300, checkpoint)
    assert toy.apply() == (
        ClearSlot(lease.slot),
        MapChunk(0, lease.slot, 0, 1),
        CopyBlock(0, 2, 3),
        MapChunk(0, lease.slot, 1, 3),
        LoadRecurrent(checkpoint.identity, lease.slot),
    )
    toy.check(lease, HISTORY[:100])


def test_chunks_that_are_not_on_the_device_need_blocks(make_toy_cache):
    toy = make_toy_cache(blocks=(5,))
    checkpoint = kept(toy)
    assert toy.kv_cache.needed(300, checkpoint) == (2,)
    toy.kv_cache.checkpoints.demote(checkpoint)
    assert toy.kv_cache.needed(300, checkpoint) == (5,)
    assert toy.kv_cache.can_open(300, checkpoint)
    lease = toy.kv_cache.open(300, checkpoint)
    assert toy.kv_cache.tables.available(0) == 0
    assert toy.kv_cache.needed(300, checkpoint) == (2,), "the sequence has brought them back"
    assert toy.kv_cache.needed(300, checkpoint, alone=True) == (2,)
    toy.apply()
    toy.check(lease, HISTORY)


def test_what_only_other_checkpoints_have_on_the_device_may_leave_with_them(make_toy_cache):
    toy = make_toy_cache()
    lease = grown(toy, 128)
    store = toy.kv_cache.checkpoints
    first = store.take(lease, 128)
    toy.grow(lease, [7], HISTORY[:128])
    second = store.take(lease, 129)
    toy.kv_cache.tables.release(lease)
    store.demote(first)
    assert toy.kv_cache.needed(300, first) == (5 - 2,)
    assert toy.kv_cache.needed(300, first, alone=True) == (5,)
    store.drop(second)
    assert toy.kv_cache.needed(300, first) == (5,)


@pytest.mark.parametrize("length", [1, 64, 100, 128, 150, 199])
def test_a_sequence_starts_from_the_first_positions_of_a_checkpoint_on_the_host(
    make_toy_cache, length
):
    toy = make_toy_cache(recurrent=False, blocks=(5,))
    checkpoint = kept(toy)
    toy.kv_cache.checkpoints.demote(checkpoint)
    assert toy.kv_cache.needed(300, checkpoint, length) == (5,)
    lease = toy.kv_cache.open(300, checkpoint, length)
    assert len(of_kind(toy.apply(), LoadBlock)) == -(-length // 64)
    toy.check(lease, HISTORY[:length])
    toy.grow(lease, [-3], HISTORY[:length])
    toy.check(lease, [*HISTORY[:length], -3])
    toy.kv_cache.check_integrity()


def test_recurrent_state_has_no_first_positions(make_toy_cache):
    toy = make_toy_cache()
    checkpoint = kept(toy)
    toy.kv_cache.checkpoints.demote(checkpoint)
    with pytest.raises(StateError, match="after 200 positions has no state after 64"):
        toy.kv_cache.open(300, checkpoint, 64)


def test_a_full_chunk_that_came_back_is_not_saved_again(make_toy_cache):
    toy = make_toy_cache()
    checkpoint = kept(toy, 128)
    toy.kv_cache.checkpoints.demote(checkpoint)
    toy.apply()
    lease = toy.kv_cache.open(300, checkpoint)
    toy.apply()
    toy.kv_cache.tables.release(lease)
    assert not of_kind(toy.apply(), SaveBlock, DropSaved)
    again = toy.kv_cache.open(300, checkpoint)
    toy.apply()
    toy.check(again, HISTORY[:128])


def test_a_chunk_outlives_its_checkpoint_in_the_sequence_that_brought_it_back(make_toy_cache):
    toy = make_toy_cache()
    checkpoint = kept(toy, 128)
    toy.kv_cache.checkpoints.demote(checkpoint)
    lease = toy.kv_cache.open(300, checkpoint)
    toy.kv_cache.checkpoints.drop(checkpoint)
    toy.apply()
    toy.check(lease, HISTORY[:128])
    toy.kv_cache.check_integrity()
    toy.kv_cache.tables.release(lease)
    toy.apply()
    assert toy.kv_cache.host.used == toy.state.saved_rows == 0


@pytest.mark.parametrize("window", [70, 200])
def test_a_windowed_pool_has_as_much_room_after_demotion_as_after_a_drop(make_toy_cache, window):
    rooms = []
    for leave in ("demote", "drop"):
        toy = make_toy_cache(windows=(window,), blocks=(12,))
        checkpoint = kept(toy, ended=False)
        getattr(toy.kv_cache.checkpoints, leave)(checkpoint)
        rooms.append(toy.kv_cache.tables.available(0))
        toy.kv_cache.check_integrity()
    assert rooms[0] == rooms[1]


# -- room on the host -----------------------------------------------------------------------------


def test_a_checkpoint_is_refused_where_the_host_has_no_room(make_toy_cache):
    toy = make_toy_cache(host_rows=4)
    store, checkpoint = toy.kv_cache.checkpoints, kept(toy)
    assert not store.can_demote(checkpoint)
    with pytest.raises(PoolExhausted, match="200 positions: it takes 5 pages, 0 of 4 are used"):
        store.demote(checkpoint)
    assert checkpoint.resident
    toy.kv_cache.check_integrity()


def test_a_row_that_two_checkpoints_share_counts_once(make_toy_cache):
    toy = make_toy_cache(host_rows=8)
    lease = grown(toy, 128)
    store = toy.kv_cache.checkpoints
    first = store.take(lease, 128)
    toy.grow(lease, HISTORY[128:], HISTORY[:128])
    second = store.take(lease, 200)
    toy.kv_cache.tables.release(lease)
    store.demote(first)
    assert toy.kv_cache.host.rows == 3
    store.demote(second)
    assert toy.kv_cache.host.rows == 3 + 2 + 1
    store.drop(first)
    assert toy.kv_cache.host.rows == 5
    toy.kv_cache.check_integrity()


def test_dropping_a_checkpoint_frees_no_row_that_a_sequence_may_load_from(make_toy_cache):
    """Its chunks were saved, and a sequence owns them now."""
    toy = make_toy_cache(blocks=(20,), host_rows=4)
    store = toy.kv_cache.checkpoints
    old = kept(toy, 128)
    store.demote(old)
    toy.kv_cache.open(300, old)
    new = kept(toy, 64)
    assert not store.can_demote(new)
    assert toy.kv_cache.host.rows == 3
    assert store.can_demote(new, [old]), "its recurrent state makes room for one row of two"
    wide = kept(toy, 128)
    assert not store.can_demote(wide, [old])


def test_dropping_a_checkpoint_frees_the_rows_that_were_never_saved(make_toy_cache):
    toy = make_toy_cache(blocks=(20,), host_rows=4)
    store = toy.kv_cache.checkpoints
    old = kept(toy, 128, ended=False)
    store.demote(old)
    new = kept(toy, 192)
    assert not store.can_demote(new)
    assert store.can_demote(new, [old])
    store.drop(old)
    store.demote(new)
    toy.kv_cache.check_integrity()


def test_a_paged_sequence_starts_only_if_the_host_has_room_for_all_of_it(make_toy_cache):
    toy = make_toy_cache(blocks=(8,), host_rows=4)
    tables = toy.kv_cache.tables
    assert not tables.fits_ever(5 * 64, resident=3)
    lease = toy.kv_cache.open(3 * 64, resident=3)
    assert not toy.kv_cache.can_open(2 * 64, resident=2)
    assert toy.kv_cache.can_open(64, resident=2)
    with pytest.raises(PoolExhausted, match="2 pages of host memory"):
        toy.kv_cache.open(2 * 64, resident=2)
    toy.grow(lease, [1] * 128, [])
    toy.kv_cache.check_integrity()
    assert (toy.kv_cache.host.rows, toy.kv_cache.host.promised) == (2, 1)
    tables.release(lease)
    assert toy.kv_cache.can_open(2 * 64, resident=2)


# -- when bytes arrive ----------------------------------------------------------------------------


def test_bytes_are_reported_once_their_copy_is_done(make_toy_cache):
    streams = LazyCopies()
    toy = make_toy_cache(streams=streams)
    checkpoint = kept(toy, 64)
    (chunk,) = checkpoint.chunks[0].values()
    toy.kv_cache.checkpoints.demote(checkpoint)
    toy.apply()
    assert toy.state.take_arrived() == ()
    streams.main_waits(1)
    assert toy.state.take_arrived() == (checkpoint.identity,)
    streams.drain()
    assert toy.state.take_arrived() == (chunk.identity,)
    assert toy.state.take_arrived() == ()


def test_after_a_fault_no_copy_is_under_way_and_no_row_is_held(make_toy_cache):
    streams = LazyCopies()
    toy = make_toy_cache(streams=streams)
    checkpoint = kept(toy)
    toy.kv_cache.checkpoints.demote(checkpoint)
    toy.apply()
    assert streams.pending > 0
    toy.kv_cache.checkpoints.drop(checkpoint)
    toy.kv_cache.forget_operations()
    toy.state.forget()
    assert streams.pending == toy.state.saved_rows == toy.state.host.used_bytes == 0
    assert toy.state.take_arrived() == ()
    lease = grown(toy)
    toy.check(lease, HISTORY)


# -- bytes that the CPU reads and writes ----------------------------------------------------------


def every(checkpoint):
    return [(pool, number) for pool, held in enumerate(checkpoint.chunks) for number in held]


def test_a_pinned_checkpoint_is_saved_and_stays_on_the_device(make_toy_cache):
    toy = make_toy_cache()
    checkpoint, store = kept(toy), toy.kv_cache.checkpoints
    pin = store.pin(checkpoint, every(checkpoint))
    assert len(of_kind(toy.apply(), SaveBlock, SaveRecurrent)) == 5
    assert checkpoint.resident
    assert toy.state.saved_rows == toy.kv_cache.host.rows == 5
    toy.kv_cache.check_integrity()
    store.unpin(pin)
    assert len(of_kind(toy.apply(), DropSaved)) == 5
    assert toy.kv_cache.host.used == 0
    toy.kv_cache.check_integrity()


@pytest.mark.parametrize("demoted", [True, False])
def test_a_checkpoint_that_is_dropped_leaves_what_is_pinned(make_toy_cache, demoted):
    toy = make_toy_cache()
    checkpoint, store = kept(toy), toy.kv_cache.checkpoints
    if demoted:
        store.demote(checkpoint)
    pin = store.pin(checkpoint, [(0, 1), (0, 3)])
    store.drop(checkpoint)
    toy.apply()
    assert toy.state.saved_rows == toy.kv_cache.host.rows == 3
    toy.kv_cache.check_integrity()
    store.unpin(pin)
    toy.apply()
    assert toy.state.saved_rows == toy.kv_cache.host.used == 0
    toy.kv_cache.check_integrity()


def test_a_checkpoint_can_leave_the_device_while_it_is_pinned(make_toy_cache):
    toy = make_toy_cache()
    checkpoint, store = kept(toy), toy.kv_cache.checkpoints
    pin = store.pin(checkpoint, every(checkpoint))
    assert store.can_demote(checkpoint)
    store.demote(checkpoint)
    assert len(of_kind(toy.apply(), SaveBlock, SaveRecurrent)) == 5, "nothing is saved twice"
    store.unpin(pin)
    toy.kv_cache.check_integrity()
    lease = toy.kv_cache.open(300, checkpoint)
    toy.apply()
    toy.check(lease, HISTORY)


def test_the_pin_of_a_chunk_that_is_being_written_is_a_copy(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(400)
    toy.grow(lease, HISTORY[:70], [])
    store = toy.kv_cache.checkpoints
    checkpoint = store.take(lease, 70)
    pin = store.pin(checkpoint, every(checkpoint))
    toy.apply()
    toy.kv_cache.check_integrity()
    toy.grow(lease, HISTORY[70:100], HISTORY[:70])
    row = b"".join(
        part.numpy().tobytes() for part in toy.state.host.parts(pin.chunks[0, 1].identity)
    )
    assert memoryview(row).cast("f")[:6].tolist() == HISTORY[64:70]
    store.unpin(pin)
    toy.kv_cache.check_integrity()
    store.demote(checkpoint)
    toy.kv_cache.tables.release(lease)
    toy.apply()
    assert toy.kv_cache.host.rows == 3


def test_nothing_is_pinned_without_room(make_toy_cache):
    toy = make_toy_cache(host_rows=4)
    checkpoint, store = kept(toy), toy.kv_cache.checkpoints
    assert store.pages_to_pin(checkpoint, every(checkpoint)) == 5
    with pytest.raises(PoolExhausted, match="no host memory"):
        store.pin(checkpoint, every(checkpoint))
    store.unpin(store.pin(checkpoint, [(0, 0)]))
    with pytest.raises(PoolExhausted, match="no host memory"):
        store.expect(200, [{}])
    store.drop(checkpoint)
    with pytest.raises(StateError, match="dropped"):
        store.pin(checkpoint, [])

"""The kv_cache's rules one by one: promises, sharing, windows, eviction, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    MapChunk,
    UnmapChunk,
)

# -- promises -------------------------------------------------------------------------------------


def test_a_new_sequence_gets_a_clean_slot_and_blocks_as_it_grows(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(200)
    assert toy.apply() == (ClearSlot(lease.slot),)
    toy.kv_cache.tables.extend(lease, 65)
    assert toy.apply() == (MapChunk(0, lease.slot, 0, 1), MapChunk(0, lease.slot, 1, 2))
    toy.kv_cache.tables.extend(lease, 128)
    assert toy.apply() == ()


def test_what_is_promised_to_one_cannot_be_promised_to_another(make_toy_cache):
    toy = make_toy_cache(blocks=(5,))
    first = toy.kv_cache.open(4 * 64)
    assert toy.kv_cache.tables.available(0) == 1
    with pytest.raises(PoolExhausted, match=r"65 positions: it needs \(2,\) blocks, available 1"):
        toy.kv_cache.open(65)
    toy.kv_cache.open(64)
    toy.kv_cache.tables.extend(first, 4 * 64)
    toy.kv_cache.check_integrity()


def test_nobody_goes_beyond_its_promise(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(64)
    with pytest.raises(StateError, match="promised 1 blocks of pool 0, position 64 would take 2"):
        toy.kv_cache.tables.extend(lease, 65)
    toy.kv_cache.check_integrity()


def test_a_step_longer_than_agreed_does_not_take_blocks_of_others(make_toy_cache):
    toy = make_toy_cache(windows=(64,), blocks=(30,), step_rows=64)
    lease = toy.kv_cache.open(64 * 20)
    with pytest.raises(StateError, match="promised 4 blocks of pool 0"):
        toy.kv_cache.tables.extend(lease, 64 * 5)
    toy.kv_cache.check_integrity()


def test_no_slot_is_a_lack_of_room_too(make_toy_cache):
    toy = make_toy_cache(slots=1)
    toy.kv_cache.open(1)
    assert not toy.kv_cache.can_open(1)
    with pytest.raises(PoolExhausted, match="free slots 0"):
        toy.kv_cache.open(1)


@pytest.mark.parametrize(("positions", "fits"), [(12 * 64, True), (12 * 64 + 1, False)])
def test_a_sequence_fits_ever_if_it_fits_an_empty_kv_cache(make_toy_cache, positions, fits):
    toy = make_toy_cache()
    busy = toy.kv_cache.open(12 * 64)
    assert toy.kv_cache.tables.fits_ever(positions) == fits
    toy.kv_cache.tables.release(busy)
    assert toy.kv_cache.can_open(positions) == fits


def test_a_lease_is_over_when_released_and_epochs_increase(make_toy_cache):
    toy = make_toy_cache(slots=1)
    first = toy.kv_cache.open(64)
    toy.kv_cache.tables.release(first)
    second = toy.kv_cache.open(64)
    assert second.slot == first.slot
    assert second.epoch > first.epoch
    for use in (
        toy.kv_cache.tables.sequence,
        toy.kv_cache.tables.length,
        toy.kv_cache.tables.release,
        lambda x: toy.kv_cache.tables.extend(x, 1),
    ):
        with pytest.raises(StateError, match="is over"):
            use(first)


@pytest.mark.parametrize("length", [-1, 5, 31])
def test_positions_advance_only_over_places_that_exist(make_toy_cache, length):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(64)
    toy.kv_cache.tables.extend(lease, 30)
    toy.kv_cache.tables.advance(lease, 10)
    with pytest.raises(StateError, match="cannot move from 10"):
        toy.kv_cache.tables.advance(lease, length)


def test_the_number_of_pool_sizes_is_checked(make_toy_cache):
    with pytest.raises(StateError, match="2 pools need 2 sizes"):
        make_toy_cache(windows=(None, 64), blocks=(8,))


# -- sharing --------------------------------------------------------------------------------------


def test_a_fork_shares_full_chunks_and_copies_the_partial_one(make_toy_cache):
    toy = make_toy_cache()
    history = list(range(100))
    parent = toy.kv_cache.open(256)
    toy.grow(parent, history, [])
    child = toy.kv_cache.tables.fork(parent, 256)
    operations = toy.apply()
    assert operations == (
        ClearSlot(child.slot),
        MapChunk(0, child.slot, 0, 1),
        CopyBlock(0, 2, 3),
        MapChunk(0, child.slot, 1, 3),
        CopyRecurrent(parent.slot, child.slot),
    )
    toy.grow(parent, [7], history)
    toy.grow(child, [8, 9], history)
    toy.check(parent, [*history, 7])
    toy.check(child, [*history, 8, 9])
    toy.kv_cache.check_integrity()


def test_a_fork_at_the_end_of_a_chunk_copies_no_block(make_toy_cache):
    toy = make_toy_cache()
    parent = toy.kv_cache.open(256)
    toy.grow(parent, list(range(128)), [])
    toy.kv_cache.tables.fork(parent, 256)
    assert not [op for op in toy.apply() if isinstance(op, CopyBlock)]


def test_shared_chunks_are_promised_once(make_toy_cache):
    toy = make_toy_cache(blocks=(6,))
    parent = toy.kv_cache.open(4 * 64)
    toy.grow(parent, list(range(128)), [])
    toy.grow(parent, list(range(64)), list(range(128)))
    assert toy.kv_cache.tables.available(0) == 2
    toy.kv_cache.tables.fork(parent, 5 * 64)
    assert toy.kv_cache.tables.available(0) == 0
    toy.kv_cache.check_integrity()


def test_the_copy_of_a_partial_chunk_counts_as_a_block(make_toy_cache):
    toy = make_toy_cache(blocks=(3,))
    parent = toy.kv_cache.open(100)
    toy.grow(parent, list(range(100)), [])
    with pytest.raises(PoolExhausted, match=r"needs \(2,\) blocks, available 1"):
        toy.kv_cache.tables.fork(parent, 192)
    toy.kv_cache.tables.fork(parent, 128)
    toy.kv_cache.check_integrity()


def test_a_fork_cannot_be_shorter_than_its_parent(make_toy_cache):
    toy = make_toy_cache()
    parent = toy.kv_cache.open(100)
    toy.grow(parent, list(range(100)), [])
    with pytest.raises(StateError, match="of 99 positions cannot start from 100"):
        toy.kv_cache.tables.fork(parent, 99)


def test_a_fork_of_a_paged_sequence_sees_what_it_sees(make_toy_cache):
    toy = make_toy_cache()
    lease, history = toy.kv_cache.open(256, resident=3), list(range(100))
    toy.grow(lease, history[:64], [])
    toy.grow(lease, history[64:], history[:64])
    toy.kv_cache.tables.evict(lease, 0)
    child = toy.kv_cache.tables.fork(lease, 256)
    toy.apply()
    assert [n for n, _ in toy.kv_cache.tables.table(child, 0)] == [1]
    for each in (lease, child):
        toy.kv_cache.tables.recall(each, 0)
        toy.apply()
        toy.check(each, history)
    toy.kv_cache.check_integrity()


# -- windows --------------------------------------------------------------------------------------


def test_a_chunk_leaves_when_the_window_has_passed_it(make_toy_cache):
    toy = make_toy_cache(windows=(64,), blocks=(8,), step_rows=64)
    lease, history = toy.kv_cache.open(1000), []
    for length, chunks in ((63, [0]), (64, [0]), (126, [0, 1]), (127, [1]), (191, [2])):
        toy.grow(lease, list(range(len(history), length)), history)
        history = list(range(length))
        assert [chunk for chunk, _ in toy.kv_cache.tables.table(lease, 0)] == chunks
        toy.check(lease, history)


def test_a_long_sequence_needs_no_more_of_a_windowed_pool_than_its_window(make_toy_cache):
    toy = make_toy_cache(windows=(None, 100), blocks=(40, 6), slots=1, step_rows=64)
    lease, history = toy.kv_cache.open(40 * 64), []
    while len(history) < 40 * 64:
        toy.grow(lease, [len(history)] * 64, history)
        history += [len(history)] * 64
        toy.check(lease, history)
    toy.kv_cache.check_integrity()


def test_sharing_a_window_costs_neither_more_nor_less_than_a_window_of_its_own(make_toy_cache):
    toy = make_toy_cache(windows=(64,), blocks=(8,), slots=2, step_rows=64)
    parent, history = toy.kv_cache.open(1000), list(range(200))
    for start in range(0, 200, 50):
        toy.grow(parent, history[start : start + 50], history[:start])
    assert toy.kv_cache.tables.available(0) == 4
    child = toy.kv_cache.tables.fork(parent, 1000)
    assert toy.kv_cache.tables.available(0) == 0
    for lease in (child, parent):
        for start in range(200, 800, 50):
            toy.grow(lease, [start] * 50, history + [0] * (start - 200))
            toy.kv_cache.check_integrity()


def test_windowed_chunks_cannot_be_evicted(make_toy_cache):
    toy = make_toy_cache(windows=(64,))
    lease = toy.kv_cache.open(100)
    toy.grow(lease, list(range(64)), [])
    with pytest.raises(StateError, match="leave by themselves"):
        toy.kv_cache.tables.evict(lease, 0)


def test_a_window_shared_by_a_checkpoint_is_charged_before_it_moves_on(make_toy_cache):
    """Otherwise the last sequence would find no block although it was promised one."""
    toy = make_toy_cache(windows=(64,), blocks=(8,), slots=2, step_rows=64)
    first = toy.kv_cache.open(1000)
    toy.grow(first, list(range(64)), [])
    assert toy.kv_cache.tables.available(0) == 8 - 4
    kept = toy.kv_cache.checkpoints.take(first, 64)
    assert toy.kv_cache.tables.available(0) == 8 - 4 - 1
    assert not toy.kv_cache.can_open(1000)
    toy.kv_cache.checkpoints.drop(kept)
    assert toy.kv_cache.can_open(1000)


# -- eviction -------------------------------------------------------------------------------------


def test_an_evicted_chunk_comes_back_with_its_bytes(make_toy_cache):
    toy = make_toy_cache()
    history = list(range(128))
    lease = toy.kv_cache.open(256, resident=4)
    toy.grow(lease, history, [])
    assert toy.state.saved_rows == 2, "full chunks are saved as soon as they are full"
    toy.kv_cache.tables.evict(lease, 0)
    assert toy.apply() == (UnmapChunk(0, lease.slot, 0),)
    other = toy.kv_cache.open(64)
    toy.grow(other, [-1] * 64, [])
    toy.kv_cache.tables.recall(lease, 0)
    assert isinstance(toy.apply()[0], LoadBlock)
    toy.check(lease, history)
    toy.kv_cache.check_integrity()


def test_a_chunk_that_others_see_is_neither_saved_nor_loaded(make_toy_cache):
    toy = make_toy_cache()
    history = list(range(64))
    first = toy.kv_cache.open(256, resident=4)
    toy.grow(first, history, [])
    second = toy.kv_cache.tables.fork(first, 256)
    toy.apply()
    toy.kv_cache.tables.evict(first, 0)
    assert toy.apply() == (UnmapChunk(0, first.slot, 0),)
    toy.check(second, history)
    toy.kv_cache.tables.recall(first, 0)
    assert toy.apply() == (MapChunk(0, first.slot, 0, 1),)
    toy.check(first, history)


def test_kept_bytes_are_forgotten_with_the_last_owner(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(256, resident=4)
    toy.grow(lease, list(range(64)), [])
    other = toy.kv_cache.tables.fork(lease, 256)
    toy.kv_cache.tables.evict(lease, 0)
    toy.kv_cache.tables.evict(other, 0)
    toy.apply()
    toy.kv_cache.tables.release(lease)
    assert toy.apply() == ()
    toy.kv_cache.tables.release(other)
    assert toy.apply() == (DropSaved(1),)


def test_a_sealed_chunk_is_saved_only_once(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(256, resident=4)
    toy.grow(lease, list(range(64)), [])
    toy.kv_cache.tables.evict(lease, 0)
    toy.kv_cache.tables.recall(lease, 0)
    toy.apply()
    toy.kv_cache.tables.evict(lease, 0)
    assert toy.apply() == (UnmapChunk(0, lease.slot, 0),)


def test_a_chunk_that_is_being_written_stays(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(256, resident=4)
    toy.grow(lease, list(range(100)), [])
    with pytest.raises(StateError, match="still being written"):
        toy.kv_cache.tables.evict(lease, 1)
    with pytest.raises(StateError, match="chunk 2 of slot 1 is not resident"):
        toy.kv_cache.tables.evict(lease, 2)
    with pytest.raises(StateError, match="is not evicted"):
        toy.kv_cache.tables.recall(lease, 0)


def test_of_the_last_chunks_that_stay_one_is_that_which_the_next_step_begins(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(512, resident=8)
    toy.grow(lease, list(range(256)), [])
    tables = toy.kv_cache.tables
    tables.rules = (replace(tables.rules[0], sink=1, tail=2),)
    assert tables.evictable(lease) == tables.evictable(lease, needed=4) == range(1, 2)
    assert tables.evictable(lease, needed=5) == range(1, 3)
    with pytest.raises(StateError, match="chunk 2 of slot 1 is protected"):
        tables.evict(lease, 2)
    tables.evict(lease, 2, needed=5)
    assert tables.away(lease) == {2}


def test_recalling_needs_one_of_the_blocks_that_a_sequence_was_promised(make_toy_cache):
    toy = make_toy_cache(blocks=(2,))
    lease, history = toy.kv_cache.open(256, resident=2), list(range(128))
    toy.grow(lease, history, [])
    toy.kv_cache.tables.evict(lease, 0)
    assert not toy.kv_cache.can_open(64), "the block is promised to the sequence"
    toy.grow(lease, [1] * 64, history)
    for _ in range(2):
        with pytest.raises(PoolExhausted, match="evict another chunk first"):
            toy.kv_cache.tables.recall(lease, 0)
        assert toy.apply() == (), "what failed has changed nothing"
        toy.kv_cache.check_integrity()
    toy.kv_cache.tables.evict(lease, 2)
    toy.kv_cache.tables.recall(lease, 0)
    toy.apply()
    toy.check(lease, history + [1] * 64)
    toy.kv_cache.check_integrity()


def test_a_chunk_that_came_back_before_any_row_missed_it_leaves_its_sequence_exact(make_toy_cache):
    """What counts is what rows saw, not how often something has left."""
    toy = make_toy_cache()
    history = list(range(64))
    lease = toy.kv_cache.open(256, resident=4)
    toy.grow(lease, history, [])
    for _ in range(3):
        toy.kv_cache.tables.evict(lease, 0)
        toy.apply()
        toy.kv_cache.tables.recall(lease, 0)
        toy.apply()
    toy.grow(lease, [64], history)
    kept = toy.kv_cache.checkpoints.take(lease, 65)
    assert kept.exact
    assert kept.resident, "on the device, like that of any other sequence"


def test_what_was_computed_without_an_evicted_chunk_is_never_exact(make_toy_cache):
    toy = make_toy_cache()
    history = list(range(64))
    lease = toy.kv_cache.open(256, resident=4)
    toy.grow(lease, history, [])
    toy.kv_cache.tables.evict(lease, 0)
    toy.apply()
    toy.grow(lease, [64], history)
    toy.kv_cache.tables.recall(lease, 0)
    assert not toy.kv_cache.checkpoints.take(lease, 65).exact
    child = toy.kv_cache.tables.fork(lease, 256)
    assert not toy.kv_cache.checkpoints.take(child, 65).exact


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_checkpoint_outlives_its_sequence_and_starts_others(make_toy_cache):
    toy = make_toy_cache()
    history = list(range(100))
    first = toy.kv_cache.open(256)
    toy.grow(first, history, [])
    kept = toy.kv_cache.checkpoints.take(first, 100)
    toy.apply()
    toy.grow(first, [1, 2, 3], history)
    toy.kv_cache.tables.release(first)
    for own in (5, 6):
        lease = toy.kv_cache.open(256, kept)
        toy.apply()
        toy.check(lease, history)
        toy.grow(lease, [own], history)
        toy.check(lease, [*history, own])
    toy.kv_cache.check_integrity()


def test_a_checkpoint_inside_a_slice_holds_what_is_about_to_be_written(make_toy_cache):
    toy = make_toy_cache(windows=(None, 64), blocks=(12, 12))
    numbers = list(range(100))
    lease = toy.kv_cache.open(256)
    toy.kv_cache.tables.extend(lease, 100)
    kept = toy.kv_cache.checkpoints.take(lease, 70)
    assert not [op for op in toy.apply() if isinstance(op, CopyRecurrent)]
    toy.write(lease, 0, numbers)
    toy.set_sum(kept.slot, numbers[:70])
    toy.kv_cache.tables.advance(lease, 100)
    toy.kv_cache.tables.release(lease)
    toy.apply()
    again = toy.kv_cache.open(256, kept)
    toy.apply()
    toy.check(again, numbers[:70])


@pytest.mark.parametrize("position", [39, 61])
def test_a_checkpoint_lies_between_what_is_committed_and_what_has_a_place(make_toy_cache, position):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(256)
    toy.kv_cache.tables.extend(lease, 60)
    toy.kv_cache.tables.advance(lease, 40)
    with pytest.raises(StateError, match=r"outside 40\.\.60"):
        toy.kv_cache.checkpoints.take(lease, position)


def test_checkpoints_end_when_their_places_are_used_up(make_toy_cache):
    toy = make_toy_cache(checkpoints=1)
    lease = toy.kv_cache.open(256)
    toy.grow(lease, [1, 2], [])
    kept = toy.kv_cache.checkpoints.take(lease, 2)
    with pytest.raises(PoolExhausted, match="position 2"):
        toy.kv_cache.checkpoints.take(lease, 2)
    toy.kv_cache.checkpoints.drop(kept)
    assert toy.kv_cache.checkpoints.can_take(lease, 2)


def test_without_recurrent_state_a_checkpoint_takes_no_place(make_toy_cache):
    toy = make_toy_cache(recurrent=False, checkpoints=0)
    lease = toy.kv_cache.open(256)
    toy.grow(lease, [1, 2], [])
    kept = toy.kv_cache.checkpoints.take(lease, 2)
    toy.kv_cache.tables.release(lease)
    again = toy.kv_cache.open(256, kept)
    toy.apply()
    toy.check(again, [1, 2])


def test_a_dropped_checkpoint_starts_nobody_and_is_not_dropped_again(make_toy_cache):
    toy = make_toy_cache()
    lease = toy.kv_cache.open(256)
    toy.grow(lease, [1, 2], [])
    kept = toy.kv_cache.checkpoints.take(lease, 2)
    toy.kv_cache.checkpoints.drop(kept)
    with pytest.raises(StateError, match="was dropped before"):
        toy.kv_cache.checkpoints.drop(kept)
    with pytest.raises(StateError, match="checkpoint that was dropped"):
        toy.kv_cache.open(256, kept)
    toy.kv_cache.check_integrity()

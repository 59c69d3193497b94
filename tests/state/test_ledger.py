"""The ledger's rules one by one: promises, sharing, windows, eviction, checkpoints."""

from __future__ import annotations

import pytest

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    MapChunk,
    SaveBlock,
    UnmapChunk,
)

# -- promises -------------------------------------------------------------------------------------


def test_a_new_sequence_gets_a_clean_slot_and_blocks_as_it_grows(make_books):
    books = make_books()
    lease = books.ledger.open(200)
    assert books.apply() == (ClearSlot(lease.slot),)
    books.ledger.extend(lease, 65)
    assert books.apply() == (MapChunk(0, lease.slot, 0, 1), MapChunk(0, lease.slot, 1, 2))
    books.ledger.extend(lease, 128)
    assert books.apply() == ()


def test_what_is_promised_to_one_cannot_be_promised_to_another(make_books):
    books = make_books(blocks=(5,))
    first = books.ledger.open(4 * 64)
    assert books.ledger.available(0) == 1
    with pytest.raises(PoolExhausted, match=r"65 positions: it needs \(2,\) blocks, available 1"):
        books.ledger.open(65)
    books.ledger.open(64)
    books.ledger.extend(first, 4 * 64)
    books.ledger.check_integrity()


def test_nobody_goes_beyond_its_promise(make_books):
    books = make_books()
    lease = books.ledger.open(64)
    with pytest.raises(StateError, match="promised 1 blocks of pool 0, position 64 would take 2"):
        books.ledger.extend(lease, 65)
    books.ledger.check_integrity()


def test_a_step_longer_than_agreed_does_not_take_blocks_of_others(make_books):
    books = make_books(windows=(64,), blocks=(30,), step_rows=64)
    lease = books.ledger.open(64 * 20)
    with pytest.raises(StateError, match="promised 4 blocks of pool 0"):
        books.ledger.extend(lease, 64 * 5)
    books.ledger.check_integrity()


def test_no_slot_is_a_lack_of_room_too(make_books):
    books = make_books(slots=1)
    books.ledger.open(1)
    assert not books.ledger.can_open(1)
    with pytest.raises(PoolExhausted, match="free slots 0"):
        books.ledger.open(1)


@pytest.mark.parametrize(("positions", "fits"), [(12 * 64, True), (12 * 64 + 1, False)])
def test_a_sequence_fits_ever_if_it_fits_an_empty_ledger(make_books, positions, fits):
    books = make_books()
    busy = books.ledger.open(12 * 64)
    assert books.ledger.fits_ever(positions) == fits
    books.ledger.release(busy)
    assert books.ledger.can_open(positions) == fits


def test_a_lease_is_over_when_released_and_epochs_increase(make_books):
    books = make_books(slots=1)
    first = books.ledger.open(64)
    books.ledger.release(first)
    second = books.ledger.open(64)
    assert second.slot == first.slot
    assert second.epoch > first.epoch
    assert not books.ledger.is_current(first)
    for use in (books.ledger.length, books.ledger.release, lambda x: books.ledger.extend(x, 1)):
        with pytest.raises(StateError, match="is over"):
            use(first)


@pytest.mark.parametrize("length", [-1, 5, 31])
def test_positions_advance_only_over_places_that_exist(make_books, length):
    books = make_books()
    lease = books.ledger.open(64)
    books.ledger.extend(lease, 30)
    books.ledger.advance(lease, 10)
    with pytest.raises(StateError, match="cannot move from 10"):
        books.ledger.advance(lease, length)


def test_the_number_of_pool_sizes_is_checked(make_books):
    with pytest.raises(StateError, match="2 pools need 2 sizes"):
        make_books(windows=(None, 64), blocks=(8,))


# -- sharing --------------------------------------------------------------------------------------


def test_a_fork_shares_full_chunks_and_copies_the_partial_one(make_books):
    books = make_books()
    history = list(range(100))
    parent = books.ledger.open(256)
    books.grow(parent, history, [])
    child = books.ledger.fork(parent, 256)
    operations = books.apply()
    assert operations == (
        ClearSlot(child.slot),
        MapChunk(0, child.slot, 0, 1),
        MapChunk(0, child.slot, 1, 3),
        CopyBlock(0, 2, 3),
        CopyRecurrent(parent.slot, child.slot),
    )
    books.grow(parent, [7], history)
    books.grow(child, [8, 9], history)
    books.check(parent, [*history, 7])
    books.check(child, [*history, 8, 9])
    books.ledger.check_integrity()


def test_a_fork_at_the_end_of_a_chunk_copies_no_block(make_books):
    books = make_books()
    parent = books.ledger.open(256)
    books.grow(parent, list(range(128)), [])
    books.ledger.fork(parent, 256)
    assert not [op for op in books.apply() if isinstance(op, CopyBlock)]


def test_shared_chunks_are_promised_once(make_books):
    books = make_books(blocks=(6,))
    parent = books.ledger.open(4 * 64)
    books.grow(parent, list(range(128)), [])
    books.grow(parent, list(range(64)), list(range(128)))
    assert books.ledger.available(0) == 2
    books.ledger.fork(parent, 5 * 64)
    assert books.ledger.available(0) == 0
    books.ledger.check_integrity()


def test_the_copy_of_a_partial_chunk_counts_as_a_block(make_books):
    books = make_books(blocks=(3,))
    parent = books.ledger.open(100)
    books.grow(parent, list(range(100)), [])
    with pytest.raises(PoolExhausted, match=r"needs \(2,\) blocks, available 1"):
        books.ledger.fork(parent, 192)
    books.ledger.fork(parent, 128)
    books.ledger.check_integrity()


def test_a_fork_cannot_be_shorter_than_its_parent(make_books):
    books = make_books()
    parent = books.ledger.open(100)
    books.grow(parent, list(range(100)), [])
    with pytest.raises(StateError, match="of 99 positions cannot start from 100"):
        books.ledger.fork(parent, 99)


def test_a_sequence_with_evicted_chunks_is_not_forked(make_books):
    books = make_books()
    lease = books.ledger.open(256)
    books.grow(lease, list(range(64)), [])
    books.ledger.evict(lease, 0)
    with pytest.raises(StateError, match="recall them first"):
        books.ledger.fork(lease, 256)


# -- windows --------------------------------------------------------------------------------------


def test_a_chunk_leaves_when_the_window_has_passed_it(make_books):
    books = make_books(windows=(64,), blocks=(8,), step_rows=64)
    lease, history = books.ledger.open(1000), []
    for length, chunks in ((63, [0]), (64, [0]), (126, [0, 1]), (127, [1]), (191, [2])):
        books.grow(lease, list(range(len(history), length)), history)
        history = list(range(length))
        assert [chunk for chunk, _ in books.ledger.table(lease, 0)] == chunks
        books.check(lease, history)


def test_a_long_sequence_needs_no_more_of_a_windowed_pool_than_its_window(make_books):
    books = make_books(windows=(None, 100), blocks=(40, 6), slots=1, step_rows=64)
    lease, history = books.ledger.open(40 * 64), []
    while len(history) < 40 * 64:
        books.grow(lease, [len(history)] * 64, history)
        history += [len(history)] * 64
        books.check(lease, history)
    books.ledger.check_integrity()


def test_sharing_a_window_costs_neither_more_nor_less_than_a_window_of_its_own(make_books):
    books = make_books(windows=(64,), blocks=(8,), slots=2, step_rows=64)
    parent, history = books.ledger.open(1000), list(range(200))
    for start in range(0, 200, 50):
        books.grow(parent, history[start : start + 50], history[:start])
    assert books.ledger.available(0) == 4
    child = books.ledger.fork(parent, 1000)
    assert books.ledger.available(0) == 0
    for lease in (child, parent):
        for start in range(200, 800, 50):
            books.grow(lease, [start] * 50, history + [0] * (start - 200))
            books.ledger.check_integrity()


def test_windowed_chunks_cannot_be_evicted(make_books):
    books = make_books(windows=(64,))
    lease = books.ledger.open(100)
    books.grow(lease, list(range(64)), [])
    with pytest.raises(StateError, match="leave by themselves"):
        books.ledger.evict(lease, 0)


def test_a_window_shared_by_a_checkpoint_is_charged_before_it_moves_on(make_books):
    """Otherwise the last sequence would find no block although it was promised one."""
    books = make_books(windows=(64,), blocks=(8,), slots=2, step_rows=64)
    first = books.ledger.open(1000)
    books.grow(first, list(range(64)), [])
    assert books.ledger.available(0) == 8 - 4
    kept = books.ledger.checkpoint(first, 64)
    assert books.ledger.available(0) == 8 - 4 - 1
    assert not books.ledger.can_open(1000)
    books.ledger.drop_checkpoint(kept)
    assert books.ledger.can_open(1000)


# -- eviction -------------------------------------------------------------------------------------


def test_an_evicted_chunk_comes_back_with_its_bytes(make_books):
    books = make_books()
    history = list(range(128))
    lease = books.ledger.open(256)
    books.grow(lease, history, [])
    books.ledger.evict(lease, 0)
    assert books.apply() == (UnmapChunk(0, lease.slot, 0), SaveBlock(0, 1, 1))
    other = books.ledger.open(64)
    books.grow(other, [-1] * 64, [])
    books.ledger.recall(lease, 0)
    assert isinstance(books.apply()[0], LoadBlock)
    books.check(lease, history)
    books.ledger.check_integrity()


def test_a_chunk_that_others_see_is_neither_saved_nor_loaded(make_books):
    books = make_books()
    history = list(range(64))
    first = books.ledger.open(256)
    books.grow(first, history, [])
    second = books.ledger.fork(first, 256)
    books.apply()
    books.ledger.evict(first, 0)
    assert books.apply() == (UnmapChunk(0, first.slot, 0),)
    books.check(second, history)
    books.ledger.recall(first, 0)
    assert books.apply() == (MapChunk(0, first.slot, 0, 1),)
    books.check(first, history)


@pytest.mark.parametrize("leaves_by", ["release", "drop_checkpoint", "evict"])
def test_the_last_that_sees_a_chunk_leaves_its_bytes_to_those_that_evicted_it(
    make_books, leaves_by
):
    books = make_books()
    history = list(range(128))
    lease = books.ledger.open(256)
    books.grow(lease, history, [])
    if leaves_by == "drop_checkpoint":
        kept = books.ledger.checkpoint(lease, 128)
        books.ledger.evict(lease, 0)
        books.ledger.drop_checkpoint(kept)
    else:
        other = books.ledger.fork(lease, 256)
        books.ledger.evict(lease, 0)
        if leaves_by == "release":
            books.ledger.release(other)
        else:
            books.ledger.evict(other, 0)
    assert [op for op in books.apply() if isinstance(op, SaveBlock)] == [SaveBlock(0, 1, 1)]
    books.ledger.check_integrity()
    books.ledger.recall(lease, 0)
    books.apply()
    books.check(lease, history)


def test_kept_bytes_are_forgotten_with_the_last_owner(make_books):
    books = make_books()
    lease = books.ledger.open(256)
    books.grow(lease, list(range(64)), [])
    other = books.ledger.fork(lease, 256)
    books.ledger.evict(lease, 0)
    books.ledger.evict(other, 0)
    books.apply()
    books.ledger.release(lease)
    assert books.apply() == ()
    books.ledger.release(other)
    assert books.apply() == (DropSaved(1),)


def test_a_sealed_chunk_is_saved_only_once(make_books):
    books = make_books()
    lease = books.ledger.open(256)
    books.grow(lease, list(range(64)), [])
    books.ledger.evict(lease, 0)
    books.ledger.recall(lease, 0)
    books.apply()
    books.ledger.evict(lease, 0)
    assert books.apply() == (UnmapChunk(0, lease.slot, 0),)


def test_a_chunk_that_is_being_written_stays(make_books):
    books = make_books()
    lease = books.ledger.open(256)
    books.grow(lease, list(range(100)), [])
    with pytest.raises(StateError, match="still being written"):
        books.ledger.evict(lease, 1)
    with pytest.raises(StateError, match="chunk 2 of slot 1 is not resident"):
        books.ledger.evict(lease, 2)
    with pytest.raises(StateError, match="is not evicted"):
        books.ledger.recall(lease, 0)


def test_recalling_needs_a_block_that_is_promised_to_nobody(make_books):
    books = make_books(blocks=(2,))
    lease = books.ledger.open(64)
    books.grow(lease, list(range(64)), [])
    books.ledger.evict(lease, 0)
    books.ledger.open(128)
    with pytest.raises(PoolExhausted, match="no block for chunk 0"):
        books.ledger.recall(lease, 0)
    books.ledger.check_integrity()


def test_what_was_computed_without_an_evicted_chunk_is_never_kept(make_books):
    books = make_books()
    history = list(range(64))
    lease = books.ledger.open(256)
    books.grow(lease, history, [])
    books.ledger.evict(lease, 0)
    books.apply()
    books.grow(lease, [64], history)
    books.ledger.recall(lease, 0)
    assert not books.ledger.can_checkpoint(lease, 65)
    child = books.ledger.fork(lease, 256)
    assert not books.ledger.can_checkpoint(child, 65)


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_checkpoint_outlives_its_sequence_and_starts_others(make_books):
    books = make_books()
    history = list(range(100))
    first = books.ledger.open(256)
    books.grow(first, history, [])
    kept = books.ledger.checkpoint(first, 100)
    books.apply()
    books.grow(first, [1, 2, 3], history)
    books.ledger.release(first)
    for own in (5, 6):
        lease = books.ledger.open(256, kept)
        books.apply()
        books.check(lease, history)
        books.grow(lease, [own], history)
        books.check(lease, [*history, own])
    books.ledger.check_integrity()


def test_a_checkpoint_inside_a_slice_holds_what_is_about_to_be_written(make_books):
    books = make_books(windows=(None, 64), blocks=(12, 12))
    numbers = list(range(100))
    lease = books.ledger.open(256)
    books.ledger.extend(lease, 100)
    kept = books.ledger.checkpoint(lease, 70)
    assert not [op for op in books.apply() if isinstance(op, CopyRecurrent)]
    books.write(lease, 0, numbers)
    books.set_sum(kept.slot, numbers[:70])
    books.ledger.advance(lease, 100)
    books.ledger.release(lease)
    books.apply()
    again = books.ledger.open(256, kept)
    books.apply()
    books.check(again, numbers[:70])


@pytest.mark.parametrize("position", [39, 61])
def test_a_checkpoint_lies_between_what_is_committed_and_what_has_a_place(make_books, position):
    books = make_books()
    lease = books.ledger.open(256)
    books.ledger.extend(lease, 60)
    books.ledger.advance(lease, 40)
    with pytest.raises(StateError, match=r"outside 40\.\.60"):
        books.ledger.checkpoint(lease, position)


def test_checkpoints_end_when_their_places_are_used_up(make_books):
    books = make_books(checkpoints=1)
    lease = books.ledger.open(256)
    books.grow(lease, [1, 2], [])
    kept = books.ledger.checkpoint(lease, 2)
    with pytest.raises(PoolExhausted, match="position 2"):
        books.ledger.checkpoint(lease, 2)
    books.ledger.drop_checkpoint(kept)
    assert books.ledger.can_checkpoint(lease, 2)


def test_without_recurrent_state_a_checkpoint_takes_no_place(make_books):
    books = make_books(recurrent=False, checkpoints=0)
    lease = books.ledger.open(256)
    books.grow(lease, [1, 2], [])
    kept = books.ledger.checkpoint(lease, 2)
    books.ledger.release(lease)
    again = books.ledger.open(256, kept)
    books.apply()
    books.check(again, [1, 2])


def test_a_dropped_checkpoint_starts_nobody_and_is_not_dropped_again(make_books):
    books = make_books()
    lease = books.ledger.open(256)
    books.grow(lease, [1, 2], [])
    kept = books.ledger.checkpoint(lease, 2)
    books.ledger.drop_checkpoint(kept)
    with pytest.raises(StateError, match="was dropped before"):
        books.ledger.drop_checkpoint(kept)
    with pytest.raises(StateError, match="checkpoint that was dropped"):
        books.ledger.open(256, kept)
    books.ledger.check_integrity()

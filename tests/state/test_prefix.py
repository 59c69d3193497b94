"""The prefix cache: longest match, eviction, reclaimable blocks."""

from __future__ import annotations

import pytest

from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache
from kinfolk.types import CHUNK_POSITIONS


def tokens(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(seed * 1000 + position for position in range(length))


@pytest.fixture
def shelf(make_toy_cache):
    """A KV cache manager, a prefix cache, and ``keep(tokens)`` that computes and keeps a prefix."""

    class Shelf:
        def __init__(self, capacity: int = 3, **options) -> None:
            self.toy = make_toy_cache(
                **{"checkpoints": 4, "blocks": (30,), "host_rows": 0, **options}
            )
            self.kv_cache = self.toy.kv_cache
            self.cache = PrefixCache(self.kv_cache.checkpoints, capacity)

        def find(self, prompt: tuple[int, ...]):
            """Start from what is found, as a request does."""
            found = self.cache.find(HashedTokens(prompt))
            self.cache.started(found)
            return found

        def keep(self, *prefixes: tuple[int, ...]) -> None:
            """Compute the longest of nested prefixes once and keep all of them."""
            longest = max(prefixes, key=len)
            lease = self.kv_cache.open(len(longest))
            history: list[int] = []
            for prefix in sorted(prefixes, key=len):
                self.toy.grow(lease, list(prefix[len(history) :]), history)
                history = list(prefix)
                self.cache.insert(
                    HashedTokens(prefix), self.kv_cache.checkpoints.take(lease, len(prefix))
                )
            self.kv_cache.tables.release(lease)
            self.toy.apply()

    return Shelf


def test_the_longest_prefix_is_found(shelf):
    here = shelf()
    here.keep(tokens(10), tokens(70))
    assert here.find(tokens(100)).length == 70
    assert here.find(tokens(70)).length == 10
    assert here.find((*tokens(69), 5)).length == 10
    assert here.find((5, *tokens(99))) is None
    assert here.find(tokens(10)) is None


def test_the_least_recently_used_goes_first(shelf):
    here = shelf(capacity=2)
    here.keep(tokens(10, 1))
    here.keep(tokens(10, 2))
    here.find(tokens(11, 1))
    here.keep(tokens(10, 3))
    assert [key[1] // 1000 for key, _ in here.cache.items()] == [1, 3]
    here.kv_cache.check_integrity()


def test_what_leaves_the_device_goes_to_the_host_and_is_found_there(shelf):
    here = shelf(capacity=2, host_rows=8)
    for seed in (1, 2, 3):
        here.keep(tokens(100, seed))
    assert [held.resident for _, held in here.cache.items()] == [False, True, True]
    found = here.find(tokens(101, 1))
    assert (found.length, found.checkpoint.resident) == (100, False)
    lease = here.kv_cache.open(200, found.checkpoint)
    here.toy.apply()
    here.toy.check(lease, list(tokens(100, 1)))


def test_the_least_recently_used_on_the_host_goes_for_another(shelf):
    """The host has room for two prefixes of two chunks."""
    here = shelf(capacity=1, host_rows=8)
    for seed in (1, 2, 3):
        here.keep(tokens(100, seed))
    here.find(tokens(101, 1))
    here.keep(tokens(100, 4))
    assert [key[1] // 1000 for key, _ in here.cache.items()] == [3, 1, 4]
    assert [held.resident for _, held in here.cache.items()] == [False, False, True]
    here.kv_cache.check_integrity()


def test_one_for_which_the_host_has_no_room_drives_nobody_out(shelf):
    here = shelf(capacity=1, host_rows=4, blocks=(30,))
    here.keep(tokens(60, 1))
    here.keep(tokens(300, 2))
    here.keep(tokens(60, 3))
    assert [key[1] // 1000 for key, _ in here.cache.items()] == [1, 3]


def test_one_that_was_used_later_is_not_dropped_for_one_that_was_used_before(shelf):
    here = shelf(capacity=1, host_rows=4)
    here.keep(tokens(60, 1))
    here.keep(tokens(100, 2))
    assert [held.resident for _, held in here.cache.items()] == [False, True]
    here.find(tokens(61, 1))
    here.keep(tokens(60, 3))
    assert [key[1] // 1000 for key, _ in here.cache.items()] == [1, 3]


def test_clearing_takes_what_is_on_the_host_too(shelf):
    here = shelf(capacity=1, host_rows=None)
    for seed in (1, 2, 3):
        here.keep(tokens(100, seed))
    here.cache.clear()
    here.toy.apply()
    assert here.kv_cache.host.used == here.toy.state.saved_rows == 0


def test_the_same_prefix_is_held_once(shelf):
    here = shelf()
    here.keep(tokens(10))
    here.keep(tokens(10))
    assert len(here.cache) == 1
    assert len(here.kv_cache.checkpoints.free) == 3


def test_without_capacity_nothing_is_held(shelf):
    here = shelf(capacity=0)
    here.keep(tokens(10))
    assert len(here.cache) == 0
    assert len(here.kv_cache.checkpoints.free) == 4


def test_clearing_gives_everything_back(shelf):
    here = shelf()
    here.keep(tokens(10), tokens(70), tokens(200))
    here.cache.clear()
    assert not here.cache.evict_one()
    assert here.kv_cache.tables.available(0) == 30
    assert len(here.kv_cache.checkpoints.free) == 4


def test_checkpoints_that_share_a_chunk_of_a_windowed_pool_are_charged_for_it_once(shelf):
    """Neither moves on, so the chunk never needs a second block: not while a sequence with the same
    chunk may move on, and not after it has."""
    here = shelf(windows=(64,))
    lease = here.kv_cache.open(300)
    history: list[int] = []
    here.toy.grow(lease, list(tokens(100)), history)
    start = here.kv_cache.tables.available(0)
    charged = []
    for length in (100, 110, 120):
        here.toy.grow(lease, list(tokens(length)[len(history) :]), history)
        history = list(tokens(length))
        here.cache.insert(
            HashedTokens(tokens(length)), here.kv_cache.checkpoints.take(lease, length)
        )
        charged.append(start - here.kv_cache.tables.available(0))
    assert charged == [2, 2, 2]
    here.kv_cache.tables.release(lease)
    assert here.kv_cache.tables.available(0) == len(here.kv_cache.pools[0].free) == 28
    here.kv_cache.check_integrity()


def test_a_windowed_pool_that_is_full_takes_a_checkpoint_of_kept_chunks(make_toy_cache):
    toy = make_toy_cache(windows=(64,), blocks=(8,))
    lease = toy.kv_cache.open(300)
    toy.grow(lease, list(tokens(100)), [])
    toy.kv_cache.checkpoints.take(lease, 100)
    other = toy.kv_cache.open(CHUNK_POSITIONS * toy.kv_cache.tables.available(0))
    assert toy.kv_cache.tables.available(0) == 0
    assert toy.kv_cache.checkpoints.can_take(lease, 100)
    toy.kv_cache.checkpoints.take(lease, 100)
    toy.kv_cache.tables.release(other)
    toy.kv_cache.check_integrity()


@pytest.mark.parametrize(("spare", "left"), [(0, 2), (1, 0), (2, 1), (3, 2)])
def test_as_few_prefixes_go_for_a_checkpoint_as_make_room_for_it(shelf, spare, left):
    """It needs three blocks of a windowed pool, each of two stored prefixes gives back one."""
    here = shelf(windows=(100,))
    here.keep(tokens(60, 1))
    here.keep(tokens(60, 2))
    lease = here.kv_cache.open(300)
    here.toy.grow(lease, list(tokens(150)), [])
    here.kv_cache.open(CHUNK_POSITIONS * 5)
    while here.kv_cache.tables.available(0) > spare:
        here.kv_cache.pools[0].allocate(-1, exact=True)
    assert here.cache.make_room(lease, 150) == (left < 2 or spare == 3)
    assert len(here.cache) == left
    assert here.kv_cache.checkpoints.can_take(lease, 150) == (spare > 0)


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("kept", [None, 60, 100, 110])
def test_what_could_be_reclaimed_is_what_becomes_available(shelf, window, kept):
    """Nested prefixes share chunks with each other, and with a sequence that started from one."""
    here = shelf(windows=(window,))
    here.keep(tokens(60), tokens(100), tokens(110))
    here.kv_cache.open(300, here.find((*tokens(100), 7)).checkpoint)
    match = None if kept is None else here.find((*tokens(kept), 7))
    keep = None if match is None else match.checkpoint
    gain = here.cache.reclaimable(keep)
    before = here.kv_cache.tables.available(0)
    while here.cache.evict_one(() if match is None else {match.entry}):
        pass
    assert len(here.cache) == (match is not None)
    assert keep is None or keep.live
    assert here.kv_cache.tables.available(0) == before + gain[0]
    here.kv_cache.check_integrity()


def test_what_is_on_the_device_stays_when_host_memory_is_needed(shelf):
    """To drop it would give none back."""
    here = shelf(host_rows=2)
    here.keep(tokens(40, 1))
    here.keep(tokens(30, 2))
    first, second = here.cache
    here.cache.send_away(first)
    here.toy.apply()
    lease = here.kv_cache.open(128)
    here.toy.grow(lease, list(tokens(50, 3)), [])
    assert here.cache.make_room_to_suspend(lease)
    assert list(here.cache) == [second]

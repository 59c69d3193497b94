"""Compressed keys of chunks: when they are made, how long they are kept, and who gives them up."""

from __future__ import annotations

import pytest
from lazy_streams import LazyCopies, LazyMain

from kinfolk.errors import PoolExhausted
from kinfolk.plans import ScoredLayers, StateLimits
from kinfolk.state.chunks import NO_DIGEST, Chunk
from kinfolk.state.digest_places import DigestPlaces
from kinfolk.state.operations import DigestChunk, LoadBlock, OperationLog

FULL = 6


def numbers(count, first=1):
    return list(range(first, first + count))


@pytest.fixture
def filled(make_toy_cache):
    """``filled(resident, digests)``: a cache, and a sequence of some full chunks and a part."""

    def fill(resident=None, digests=20, streams=None, start=1):
        toy = make_toy_cache(
            digests=digests, streams=streams, recurrent=False, slots=5, blocks=(24,)
        )
        lease = toy.kv_cache.open(500, resident=resident)
        history = numbers(64 * FULL + 10, start)
        for at in range(0, len(history), 100):
            toy.grow(lease, history[at : at + 100], history[:at])
        return toy, lease, history

    return fill


def test_chunks_of_a_paged_sequence_are_compressed_once_as_soon_as_they_are_full(filled):
    toy, lease, history = filled(resident=8)
    places = toy.kv_cache.tables.digest_places(lease)
    assert len(set(places)) == FULL
    assert NO_DIGEST not in places
    toy.check(lease, history)
    toy.kv_cache.tables.evict(lease, 2)
    toy.kv_cache.tables.recall(lease, 2)
    assert not [each for each in toy.apply() if isinstance(each, DigestChunk)]
    assert list(toy.kv_cache.tables.digest_places(lease)) == list(places)


def test_chunks_of_other_sequences_are_not_compressed(filled):
    toy, lease, _ = filled()
    assert set(toy.kv_cache.tables.digest_places(lease)) == {NO_DIGEST}
    assert not toy.scorer.kept


@pytest.mark.parametrize("streams", [LazyCopies, LazyMain])
def test_chunks_that_a_paged_sequence_starts_without_are_compressed_on_their_way(filled, streams):
    """They come to one free block after the other, and are read there before the next one comes."""
    toy, lease, history = filled(streams=streams())
    tables, store = toy.kv_cache.tables, toy.kv_cache.checkpoints
    prefix = store.take(lease, len(history))
    tables.release(lease)
    store.demote(prefix)
    toy.apply()
    toy.streams.drain()
    paged = toy.kv_cache.open(700, prefix, resident=4, away=range(1, FULL - 1))
    operations = toy.apply()
    loads = [each for each in operations if isinstance(each, LoadBlock)]
    assert len(loads) == FULL + 1
    assert len({each.block for each in loads}) < len(loads), "blocks are used again"
    assert NO_DIGEST not in tables.digest_places(paged)
    toy.check(paged, history)
    toy.kv_cache.check_integrity()


def test_a_chunk_is_compressed_for_all_who_share_it(filled):
    toy, lease, history = filled(resident=8)
    places = toy.kv_cache.tables.digest_places(lease)
    forked = toy.kv_cache.tables.fork(lease, len(history) + 5)
    assert list(toy.kv_cache.tables.digest_places(forked)) == list(places)
    assert not [each for each in toy.apply() if isinstance(each, DigestChunk)]
    toy.kv_cache.tables.release(lease)
    toy.check(forked, history)
    toy.kv_cache.tables.release(forked)
    assert not toy.kv_cache.tables.digests.holders


def test_prefixes_keep_their_places_until_a_paged_sequence_needs_them(filled):
    toy, lease, history = filled(resident=8, digests=2 * FULL)
    tables, store = toy.kv_cache.tables, toy.kv_cache.checkpoints
    tables.evict(lease, 1)
    prefix = store.take(lease, len(history))
    tables.release(lease)
    assert len(tables.digests.holders) == FULL
    for first in (10_000, 20_000):
        other, known = toy.kv_cache.open(64 * FULL, resident=8), []
        toy.grow(other, new := numbers(64 * FULL, first), known)
        toy.check(other, new)
        toy.kv_cache.check_integrity()
        tables.release(other)
    kept = [chunk.digest != NO_DIGEST for chunk in prefix.chunks[0].values()]
    assert kept == [True] * FULL + [False], "what was freed first is used again"
    leases = [toy.kv_cache.open(64 * 2, resident=2) for _ in range(3)]
    for number, other in enumerate(leases):
        toy.grow(other, numbers(128, 1000 * number), [])
    again = toy.kv_cache.open(700, prefix, resident=4, away=range(1, 4))
    toy.apply()
    assert NO_DIGEST not in tables.digest_places(again)
    toy.check(again, history)


def test_the_longest_holder_without_a_sequence_gives_up_its_place():
    log = OperationLog()
    places = DigestPlaces(2, log)
    old, running, new = (Chunk(n, n, owners=1, refs=1) for n in (1, 2, 3))
    running.pagers = 1
    for chunk in (old, running, new):
        places.give(chunk, 7)
    assert [each.digest for each in (old, running, new)] == [NO_DIGEST, 1, 0]
    assert log.take() == (DigestChunk(1, 7, 0), DigestChunk(2, 7, 1), DigestChunk(3, 7, 0))
    new.pagers = 1
    with pytest.raises(PoolExhausted, match="all 2 places for compressed keys are in use"):
        places.give(old, 7)


def test_there_are_places_for_all_chunks_of_as_many_sequences_as_have_blocks():
    limits = StateLimits(8, 0, (48,), 1000, 64, resident=10, scored=ScoredLayers((0,)))
    assert 4 * 16 <= limits.digests < 5 * 16
    assert StateLimits(8, 0, (48,), 1000, 64, resident=10).digests == 0


def test_what_is_forgotten_is_compressed_again_when_a_sequence_starts(filled):
    toy, lease, history = filled(resident=8)
    tables, store = toy.kv_cache.tables, toy.kv_cache.checkpoints
    tables.evict(lease, 1)
    prefix = store.take(lease, len(history))
    tables.release(lease)
    toy.kv_cache.forget_scores()
    toy.scorer.kept.clear()
    again = toy.kv_cache.open(700, prefix, resident=5, away=[1, 3])
    toy.apply()
    assert NO_DIGEST not in tables.digest_places(again)
    toy.check(again, history)

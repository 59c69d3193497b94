"""The kernel that brings chosen experts into near bays."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import (
    fetch_ahead,
    fetch_pieces_ahead,
    start_dependents,
    wait_for_producers,
)
from kinfolk_kernels.experts.uses import UNROLLED_PAIRS, uses_of
from kinfolk_kernels.fetch import op

HIT, FETCHED = tl.constexpr(op.HIT), tl.constexpr(op.FETCHED)

LAST = tl.constexpr(2**63 - 1)
"""The key of what is no candidate: behind all others."""

PLACE_BITS = tl.constexpr(11)
"""Bits of a bay, and of an expert plus one, in a key."""

PLACE_MASK = tl.constexpr(2**11 - 1)

EMPTY = tl.constexpr(-(2**31 + 1) * 2**22)
"""The key of bay 0 if it is empty: before those of all scores."""

HITS = tl.constexpr(2**16)
"""What a hit adds to a number in which misses are ones."""

WEIGHT_PIECE, RECORD_PIECE = tl.constexpr(4096), tl.constexpr(1024)
"""Bytes that a thread prefetches at once, of weights and of near records."""

LANES, SHARE = tl.constexpr(128), tl.constexpr(16)
"""Pieces that a program prefetches at a time, of a weight and of a near record: one for each of its
threads, as a row of eight experts has eight records."""


@triton.jit
def _ordered(score):
    """int64 that are ordered like the float32 numbers ``score``."""
    bits = score.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _less(a, b, c, d):
    return tl.minimum(a, c), tl.minimum(b, d)


@triton.jit
def _next(used, score, bay, owner, pinned, bays, SIZE: tl.constexpr):
    """The expert that comes next, the expert that leaves and the bay, and whether there are both;
    -1 leaves an empty bay. One reduction finds both: a round of exchanges between warps."""
    e = tl.arange(0, SIZE)
    rank = _ordered(score)
    coming = tl.where(used & (bay >= bays), (~rank << 32) | e, LAST)
    place = ((e + 1) << PLACE_BITS) | bay
    may = (used == 0) & (bay >= pinned) & (bay < bays)
    going = tl.where(may, (rank << (2 * PLACE_BITS)) | place, LAST)
    # An expert and an empty bay may share an element: empty bays come first, then it is owned.
    empty = (owner < 0) & (e >= pinned) & (e < bays)
    going = tl.where(empty, EMPTY + e.to(tl.int64), going)
    coming, going = tl.reduce((coming, going), 0, _less)
    expert = (coming & 0x7FFFFFFF).to(tl.int32)
    leaving = ((going >> PLACE_BITS) & PLACE_MASK).to(tl.int32) - 1
    to = (going & PLACE_MASK).to(tl.int32)
    return expert, leaving, to, (coming != LAST) & (going != LAST)


@triton.jit
def pieces_of_weight(ptr, first, step, nbytes):
    """Addresses and bytes of each ``step``-th piece from ``first`` on of ``nbytes`` at ``ptr``,
    [LANES]; none behind the last."""
    at = (first + tl.arange(0, LANES) * step) * WEIGHT_PIECE
    return ptr.to(tl.int64) + at, tl.minimum(nbytes - at, WEIGHT_PIECE)


@triton.jit
def pieces_of_records(
    ids_ptr, bay_ptr, near_ptr, first, stop, bays, words, near_step, PAIRS: tl.constexpr
):
    """Addresses and bytes of the pieces from ``first`` on of the near records of the first ``stop``
    ids, [PAIRS, SHARE]; none of other records."""
    q = tl.arange(0, PAIRS)
    expert = tl.load(ids_ptr + q, mask=q < stop, other=0)
    bay = tl.load(bay_ptr + expert, mask=q < stop, other=-1)
    near = (bay >= 0) & (bay < bays)
    at = ((first + tl.arange(0, SHARE)) * RECORD_PIECE)[None, :]
    left = tl.where(near[:, None], 4 * words - at, 0)
    record = (near_ptr + tl.where(near, bay, 0) * near_step).to(tl.int64)
    return record[:, None] + at, tl.minimum(left, RECORD_PIECE)


@triton.jit
def _prefetch_weight(ptr, nbytes):
    """Prefetch this program's pieces of a weight of ``nbytes`` at ``ptr``."""
    programs = tl.num_programs(0)
    for first in tl.range(tl.program_id(0), tl.cdiv(nbytes, WEIGHT_PIECE), programs * LANES):
        addresses, sizes = pieces_of_weight(ptr, first, programs, nbytes)
        fetch_pieces_ahead(addresses, sizes)


@triton.jit
def _prefetch_records(
    ids_ptr, bay_ptr, near_ptr, stop, bays, words, near_step, PAIRS: tl.constexpr
):
    """Prefetch this program's pieces of the near records of the first ``stop`` ids."""
    programs = tl.num_programs(0)
    for first in tl.range(
        tl.program_id(0) * SHARE, tl.cdiv(4 * words, RECORD_PIECE), programs * SHARE
    ):
        addresses, sizes = pieces_of_records(
            ids_ptr, bay_ptr, near_ptr, first, stop, bays, words, near_step, PAIRS
        )
        fetch_pieces_ahead(addresses, sizes)


@triton.jit(
    do_not_specialize=[
        "pairs", "bays", "pinned", "decay", "bytes_0", "bytes_1", "bytes_2", "bytes_3", "bytes_4",
        "bytes_5", "prefetched",
    ]
)  # fmt: skip
def fetch_kernel(
    ids_ptr, rows_ptr, far_ptr,
    weight_0, weight_1, weight_2, weight_3, weight_4, weight_5,
    near_ptr, bay_ptr, owner_ptr, score_ptr, uses_ptr, traffic_ptr, done_ptr,
    pairs, bays, pinned, words,
    bytes_0, bytes_1, bytes_2, bytes_3, bytes_4, bytes_5, prefetched,
    near_step, far_step,
    decay,
    E: tl.constexpr, TOP_K: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (programs,): every program decides alone what comes into which bay, all alike, and they
    share each record in pieces of WORDS words. Records have ``words`` int32.

    The next piece is asked for before the last one is stored, and what comes next is decided while
    pieces are on their way. The last program that has decided stores the map and the scores, as all
    have read them by then. If nothing comes, the first program does: the map stays, and what the
    others decide does not depend on scores.

    When the first piece is asked for, the device's memory has nothing to do. Of few rows the cache
    then gets what launches behind read: ``bytes_n`` at each ``weight_n``, and of the first
    ``prefetched`` ids the near records.
    """
    start_dependents(PDL)
    e = tl.arange(0, SIZE)
    kinds = tl.arange(0, 4)
    programs, first = tl.num_programs(0), tl.program_id(0) == 0
    if PDL:
        # Since the step before, the weights of all layers have passed through the cache.
        own = tl.minimum(e, E - 1)
        fetch_ahead(bay_ptr + own)
        fetch_ahead(score_ptr + own)
        fetch_ahead(uses_ptr + own)
    wait_for_producers(PDL)
    # The number of rows may be any, and times TOP_K more than 32 bits hold.
    real = tl.minimum(pairs, tl.load(rows_ptr)) * TOP_K
    bay = tl.load(bay_ptr + e, mask=e < E, other=-1).to(tl.int32)
    owner = tl.load(owner_ptr + e, mask=e < bays, other=0)
    score = tl.load(score_ptr + e, mask=e < E, other=0.0)
    uses = tl.load(uses_ptr + e, mask=e < tl.where(first, E, 0), other=0)
    traffic = tl.load(traffic_ptr + kinds, mask=kinds < tl.where(first, 3, 0), other=0)
    count = uses_of(ids_ptr, pairs, real, SIZE, PAIRS)
    used = count > 0
    score = score * decay + used.to(tl.float32)
    near = used & (bay >= 0) & (bay < bays)
    found = tl.sum((used & (bay >= bays)).to(tl.int32) + near.to(tl.int32) * HITS, 0)
    misses, hits = found % HITS, found // HITS
    fetched = misses * 0
    stores = first
    # What is on its way: its words, where they begin in a record, and its bay.
    held = tl.zeros([WORDS], tl.int32)
    held_at, held_bay = fetched + words, fetched
    if misses > 0:
        expert, leaving, to, more = _next(used, score, bay, owner, pinned, bays, SIZE)
        begin = tl.program_id(0)
        if more:
            source = far_ptr + expert.to(tl.int64) * far_step
            held_at, held_bay = begin * WORDS, to
            word = held_at + tl.arange(0, WORDS)
            held = tl.load(source + word, mask=word < words)
            begin += programs
            if PDL and PAIRS <= UNROLLED_PAIRS:
                # What is read first is asked for last: it is the last to leave a full cache.
                _prefetch_weight(weight_5, bytes_5)
                _prefetch_weight(weight_4, bytes_4)
                _prefetch_weight(weight_3, bytes_3)
                _prefetch_weight(weight_2, bytes_2)
                _prefetch_weight(weight_1, bytes_1)
                _prefetch_weight(weight_0, bytes_0)
                stop = tl.minimum(tl.minimum(pairs, prefetched), real)
                _prefetch_records(ids_ptr, bay_ptr, near_ptr, stop, bays, words, near_step, PAIRS)
        while more:
            source = far_ptr + expert.to(tl.int64) * far_step
            for piece in tl.range(begin, tl.cdiv(words, WORDS), programs):
                word = piece * WORDS + tl.arange(0, WORDS)
                coming = tl.load(source + word, mask=word < words)
                word = held_at + tl.arange(0, WORDS)
                target = near_ptr + held_bay.to(tl.int64) * near_step
                tl.store(target + word, held, mask=word < words)
                held, held_at, held_bay = coming, piece * WORDS, to
            bay = tl.where(e == expert, to, tl.where(e == leaving, bays + leaving, bay))
            owner = tl.where(e == to, expert, owner)
            fetched += 1
            begin = tl.program_id(0)
            expert, leaving, to, more = _next(used, score, bay, owner, pinned, bays, SIZE)
        if fetched > 0:
            # Every thread holds what it has read, and the last program only stores: no fence.
            tl.debug_barrier()
            stores = tl.atomic_add(done_ptr, 1, sem="relaxed") == programs - 1
    if stores:
        tl.store(score_ptr + e, score, mask=e < E)
        if fetched > 0:
            tl.store(bay_ptr + e, bay.to(tl.int64), mask=e < E)
            tl.store(owner_ptr + e, owner, mask=e < bays)
            tl.store(done_ptr, 0)
    if first:
        tl.store(uses_ptr + e, uses + count, mask=e < E)
        added = tl.where(kinds == HIT, hits, tl.where(kinds == FETCHED, fetched, misses - fetched))
        tl.store(traffic_ptr + kinds, traffic + added, mask=kinds < 3)
    word = held_at + tl.arange(0, WORDS)
    target = near_ptr + held_bay.to(tl.int64) * near_step
    tl.store(target + word, held, mask=word < words)

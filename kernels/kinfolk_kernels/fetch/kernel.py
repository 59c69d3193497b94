"""The kernel that brings chosen experts into near bays."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import fetch_ahead, start_dependents, wait_for_producers
from kinfolk_kernels.experts.uses import uses_of
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


@triton.jit(do_not_specialize=["pairs", "bays", "pinned", "decay"])
def fetch_kernel(
    ids_ptr, rows_ptr, far_ptr,
    near_ptr, bay_ptr, owner_ptr, score_ptr, uses_ptr, traffic_ptr, done_ptr,
    pairs, bays, pinned, words,
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
        while more:
            source = far_ptr + expert.to(tl.int64) * far_step
            for piece in tl.range(tl.program_id(0), tl.cdiv(words, WORDS), programs):
                word = piece * WORDS + tl.arange(0, WORDS)
                coming = tl.load(source + word, mask=word < words)
                word = held_at + tl.arange(0, WORDS)
                target = near_ptr + held_bay.to(tl.int64) * near_step
                tl.store(target + word, held, mask=word < words)
                held, held_at, held_bay = coming, piece * WORDS, to
            bay = tl.where(e == expert, to, tl.where(e == leaving, bays + leaving, bay))
            owner = tl.where(e == to, expert, owner)
            fetched += 1
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

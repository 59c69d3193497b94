"""What programs that fetch the experts of a layer have in common: the state of the layer's bays,
which experts come into which of them, and the new state.

Every program decides alone, all alike: none waits for another.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import fetch_ahead
from kinfolk_kernels.experts.uses import uses_of
from kinfolk_kernels.fetch import op

HIT, FETCHED = tl.constexpr(op.HIT), tl.constexpr(op.FETCHED)

HITS = tl.constexpr(2**16)
"""What a hit adds to a number in which misses are ones."""

LAST = tl.constexpr(2**63 - 1)
"""The key of what is no candidate: behind all others."""

PLACE_BITS = tl.constexpr(11)
"""Bits of a bay, and of an expert plus one, in a key."""

PLACE_MASK = tl.constexpr(2**11 - 1)

EMPTY = tl.constexpr(-(2**31 + 1) * 2**22)
"""The key of bay 0 if it is empty: before those of all scores."""


@triton.jit
def residency_of(
    ids_ptr, rows_ptr, bay_ptr, owner_ptr, score_ptr,
    pairs, bays, decay,
    E: tl.constexpr, TOP_K: tl.constexpr, SIZE: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """By expert [SIZE]: its bay, its score after this step, and how many real rows chose it; by
    bay [SIZE]: its owner."""
    e = tl.arange(0, SIZE)
    # The number of rows may be any, and times TOP_K more than 32 bits hold.
    real = tl.minimum(pairs, tl.load(rows_ptr)) * TOP_K
    bay = tl.load(bay_ptr + e, mask=e < E, other=-1).to(tl.int32)
    owner = tl.load(owner_ptr + e, mask=e < bays, other=0)
    score = tl.load(score_ptr + e, mask=e < E, other=0.0)
    count = uses_of(ids_ptr, pairs, real, SIZE, PAIRS)
    # The reference rounds the product before it adds. The compiler may not fuse both if something
    # is between them, and as no score is negative, this changes none.
    score = tl.maximum(score * decay, 0.0)
    return bay, owner, score + (count > 0).to(tl.float32), count


@triton.jit
def residency_ahead(bay_ptr, score_ptr, uses_ptr, E: tl.constexpr, SIZE: tl.constexpr):
    """Ask the cache for the state: since the step before, the weights of all layers have passed
    through it."""
    own = tl.minimum(tl.arange(0, SIZE), E - 1)
    fetch_ahead(bay_ptr + own)
    fetch_ahead(score_ptr + own)
    fetch_ahead(uses_ptr + own)


@triton.jit
def used_of(count, bay, bays):
    """How many of the chosen experts are missed, and how many are near."""
    used = count > 0
    near = used & (bay >= 0) & (bay < bays)
    found = tl.sum((used & (bay >= bays)).to(tl.int32) + near.to(tl.int32) * HITS, 0)
    return found % HITS, found // HITS


@triton.jit
def counts_so_far(uses_ptr, traffic_ptr, wanted, E: tl.constexpr, SIZE: tl.constexpr):
    """The counters, which only the program that adds to them reads."""
    e = tl.arange(0, SIZE)
    kinds = tl.arange(0, 4)
    uses = tl.load(uses_ptr + e, mask=e < tl.where(wanted, E, 0), other=0)
    return uses, tl.load(traffic_ptr + kinds, mask=kinds < tl.where(wanted, 3, 0), other=0)


@triton.jit
def add_counts(
    uses_ptr, traffic_ptr, uses, traffic, count, hits, fetched, misses,
    E: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add those of this step to ``counts_so_far``."""
    e = tl.arange(0, SIZE)
    kinds = tl.arange(0, 4)
    tl.store(uses_ptr + e, uses + count, mask=e < E)
    added = tl.where(kinds == HIT, hits, tl.where(kinds == FETCHED, fetched, misses - fetched))
    tl.store(traffic_ptr + kinds, traffic + added, mask=kinds < 3)


@triton.jit
def _ordered(score):
    """int64 that are ordered like the float32 numbers ``score``."""
    bits = score.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _less(a, b, c, d):
    return tl.minimum(a, c), tl.minimum(b, d)


@triton.jit
def next_fetch(used, score, bay, owner, pinned, bays, SIZE: tl.constexpr):
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
def moved_in(bay, owner, expert, leaving, to, bays, SIZE: tl.constexpr):
    """Bays and owners after ``expert`` has come to bay ``to``, which ``leaving`` had."""
    e = tl.arange(0, SIZE)
    bay = tl.where(e == expert, to, tl.where(e == leaving, bays + leaving, bay))
    return bay, tl.where(e == to, expert, owner)


@triton.jit
def is_last(done_ptr, deciders):
    """Whether all other programs that decide have read the state: then it may be stored. Every
    thread holds what it has read, and the last program only stores: no fence."""
    tl.debug_barrier()
    return tl.atomic_add(done_ptr, 1, sem="relaxed") == deciders - 1


@triton.jit
def store_scores(score_ptr, score, E: tl.constexpr, SIZE: tl.constexpr):
    e = tl.arange(0, SIZE)
    tl.store(score_ptr + e, score, mask=e < E)


@triton.jit
def store_residency(
    bay_ptr, owner_ptr, done_ptr, bay, owner, bays, E: tl.constexpr, SIZE: tl.constexpr
):
    """Store bays and owners, and reset the counter of ``is_last``."""
    e = tl.arange(0, SIZE)
    tl.store(bay_ptr + e, bay.to(tl.int64), mask=e < E)
    tl.store(owner_ptr + e, owner, mask=e < bays)
    tl.store(done_ptr, 0)

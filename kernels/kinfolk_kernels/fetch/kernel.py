"""The kernel that brings chosen experts into near bays."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.fetch import op

HIT, FETCHED = tl.constexpr(op.HIT), tl.constexpr(op.FETCHED)

LAST = tl.constexpr(2**63 - 1)
"""The key of what is not sorted: behind all others."""

EMPTY = tl.constexpr(-(2**31) - 1)
"""The rank of an empty bay: before all scores."""

PLACE_BITS = tl.constexpr(11)
"""Bits of a bay, and of an expert plus one, in a key."""

PLACE_MASK = tl.constexpr(2**11 - 1)


@triton.jit
def _uses(ids_ptr, pairs, real, SIZE: tl.constexpr, PAIRS: tl.constexpr):
    """int32 [SIZE]: how many of the first ``real`` of ``pairs`` ids are each expert. The loads do
    not wait for ``real``."""
    e = tl.arange(0, SIZE)[:, None]
    total = tl.zeros([SIZE, PAIRS], tl.int32)
    for start in tl.range(0, pairs, PAIRS):
        q = start + tl.arange(0, PAIRS)[None, :]
        other = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
        total += ((other == e) & (q < real)).to(tl.int32)
    return tl.sum(total, 1)


@triton.jit
def _ordered(score):
    """int64 that are ordered like the float32 numbers ``score``."""
    bits = score.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _one(values, at, SIZE: tl.constexpr):
    """``values[at]`` as int64."""
    return tl.sum(tl.where(tl.arange(0, SIZE) == at, values, 0), 0).to(tl.int64)


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
    share the copying in pieces of WORDS words. Records have ``words`` int32.

    If something comes, the last program to end stores what changes, when all have read it. If not,
    the first stores scores and counts, which no other program looks at then.
    """
    start_dependents(PDL)
    e = tl.arange(0, SIZE)
    wait_for_producers(PDL)
    # The number of rows may be any, and times TOP_K more than 32 bits hold.
    real = tl.minimum(pairs, tl.load(rows_ptr)) * TOP_K
    bay = tl.load(bay_ptr + e, mask=e < E, other=-1).to(tl.int32)
    score = tl.load(score_ptr + e, mask=e < E, other=0.0)
    uses = tl.load(uses_ptr + e, mask=e < E, other=0)
    kinds = tl.arange(0, 4)
    traffic = tl.load(traffic_ptr + kinds, mask=kinds < 3, other=0)
    count = _uses(ids_ptr, pairs, real, SIZE, PAIRS)
    used = count > 0
    score = score * decay + used.to(tl.float32)
    missed = used & (bay >= bays)
    misses = tl.sum(missed.to(tl.int32), 0)
    hits = tl.sum((used & (bay >= 0) & (bay < bays)).to(tl.int32), 0)
    fetched = misses * 0
    owner, free = tl.zeros_like(e), missed
    if (misses > 0) & (pinned < bays):
        owner = tl.load(owner_ptr + e, mask=e < bays, other=-1)
        kept = (owner >= 0) & (tl.gather(used.to(tl.int32), tl.maximum(owner, 0), 0) > 0)
        free = (e >= pinned) & (e < bays) & (kept == 0)
        fetched = tl.minimum(misses, tl.sum(free.to(tl.int32), 0))
    stores = tl.program_id(0) == 0
    coming, to, leaving = tl.zeros_like(e), tl.zeros_like(e), tl.zeros_like(e)
    if fetched > 0:
        own = tl.load(score_ptr + tl.maximum(owner, 0), mask=free, other=0.0) * decay
        rank = tl.where(owner < 0, EMPTY, _ordered(own))
        place = ((owner + 1) << PLACE_BITS) | e
        key = tl.where(free, (rank << (2 * PLACE_BITS)) | place.to(tl.int64), LAST)
        key = tl.sort(key)
        to = (key & PLACE_MASK).to(tl.int32)
        leaving = ((key >> PLACE_BITS) & PLACE_MASK).to(tl.int32) - 1
        key = tl.sort(tl.where(missed, (~_ordered(score) << 32) | e.to(tl.int64), LAST))
        coming = (key & 0x7FFFFFFF).to(tl.int32)
        pieces = tl.cdiv(words, WORDS)
        for piece in tl.range(tl.program_id(0), fetched * pieces, tl.num_programs(0)):
            word = piece % pieces * WORDS + tl.arange(0, WORDS)
            source = far_ptr + _one(coming, piece // pieces, SIZE) * far_step
            target = near_ptr + _one(to, piece // pieces, SIZE) * near_step
            tl.store(target + word, tl.load(source + word, mask=word < words), mask=word < words)
        tl.debug_barrier()
        stores = tl.atomic_add(done_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if stores:
        tl.debug_barrier()
        here = e < fetched
        tl.store(bay_ptr + leaving, (bays + leaving).to(tl.int64), mask=here & (leaving >= 0))
        tl.store(bay_ptr + coming, to.to(tl.int64), mask=here)
        tl.store(owner_ptr + to, coming, mask=here)
        tl.store(score_ptr + e, score, mask=e < E)
        tl.store(uses_ptr + e, uses + count, mask=e < E)
        stay = misses - fetched
        added = tl.where(kinds == HIT, hits, tl.where(kinds == FETCHED, fetched, stay))
        tl.store(traffic_ptr + kinds, traffic + added, mask=kinds < 3)
        tl.store(done_ptr, 0, mask=fetched > 0)

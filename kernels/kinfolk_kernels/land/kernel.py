"""The kernel that brings chosen experts into landing bays."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.experts.uses import uses_of


@triton.jit(do_not_specialize=["pairs", "bays", "places"])
def land_kernel(
    ids_ptr, rows_ptr, far_ptr, landing_ptr, bay_ptr, landed_ptr,
    pairs, bays, places, words,
    landing_step, far_step,
    E: tl.constexpr, TOP_K: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (programs,): every program decides alone what comes where, all alike, and they share the
    copying in pieces of WORDS words. Records have ``words`` int32, and there are ``places`` landing
    bays. The first program stores the map, which none of them reads."""
    start_dependents(PDL)
    e = tl.arange(0, SIZE)
    wait_for_producers(PDL)
    # The number of rows may be any, and times TOP_K more than 32 bits hold.
    real = tl.minimum(pairs, tl.load(rows_ptr)) * TOP_K
    bay = tl.load(bay_ptr + e, mask=e < E, other=-1)
    coming = (uses_of(ids_ptr, pairs, real, SIZE, PAIRS) > 0) & (bay >= bays)
    order = tl.cumsum(coming.to(tl.int32), 0) - 1
    # Nothing is written behind the bays, whatever the map says.
    coming = coming & (order < places)
    if tl.program_id(0) == 0:
        there = tl.where(bay < bays, bay, -1)
        here = (bays + order).to(tl.int64)
        tl.store(landed_ptr + e, tl.where(coming, here, there), mask=e < E)
    pieces = tl.cdiv(words, WORDS)
    for piece in tl.range(
        tl.program_id(0), tl.sum(coming.to(tl.int32), 0) * pieces, tl.num_programs(0)
    ):
        place = piece // pieces
        word = piece % pieces * WORDS + tl.arange(0, WORDS)
        expert = tl.sum(tl.where(coming & (order == place), e, 0), 0).to(tl.int64)
        source = far_ptr + expert * far_step
        target = landing_ptr + tl.cast(place, tl.int64) * landing_step
        tl.store(target + word, tl.load(source + word, mask=word < words), mask=word < words)

"""Kernels that sort the (row, expert) pairs of a step by expert, in a stable order. Results:

``order``   int32 [P]      the pairs, those of expert 0 first
``starts``  int32 [E + 1]  the place in ``order`` of each expert's first pair
``ends``    int32 [E]      number of blocks of pairs of the experts 0 to e

A pair's place is the number of pairs before it, so it does not depend on the order of programs.
With PADDED, only the pairs of the first ``rows`` int32 [1] rows are sorted, TOP_K a row.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

COMPARED_PAIRS = tl.constexpr(16)
"""Pairs that a pair is compared with at once."""


@triton.jit
def _real(pairs, rows_ptr, TOP_K: tl.constexpr, PADDED: tl.constexpr):
    """The number of pairs of rows that are no padding."""
    if PADDED:
        # The number of rows may be any, and times TOP_K more than 32 bits hold.
        pairs = tl.minimum(pairs, tl.minimum(pairs, tl.load(rows_ptr)) * TOP_K)
    return pairs


@triton.jit
def _store_starts(starts_ptr, ends_ptr, before, total, pairs, E: tl.constexpr, SIZE: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    e = tl.arange(0, SIZE)
    tl.store(starts_ptr + e, before, mask=e < E)
    tl.store(starts_ptr + E, pairs)
    blocks = tl.cumsum((total + BLOCK - 1) // BLOCK, 0)
    tl.store(ends_ptr + e, blocks, mask=e < E)


@triton.jit(do_not_specialize=["pairs"])
def sort_few_kernel(
    ids_ptr, rows_ptr, order_ptr, starts_ptr, ends_ptr, pairs,
    E: tl.constexpr, TOP_K: tl.constexpr, PADDED: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for up to PAIRS pairs, a multiple of 16: compares every pair with every other."""
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    p = tl.arange(0, PAIRS)[:, None]
    e = tl.arange(0, SIZE)[:, None]
    mine = tl.load(ids_ptr + p, mask=p < pairs, other=SIZE).to(tl.int32)
    place = tl.zeros([PAIRS, COMPARED_PAIRS], tl.int32)
    before = tl.zeros([SIZE, COMPARED_PAIRS], tl.int32)
    total = tl.zeros([SIZE, COMPARED_PAIRS], tl.int32)
    for start in tl.range(0, PAIRS, COMPARED_PAIRS):
        q = start + tl.arange(0, COMPARED_PAIRS)[None, :]
        other = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
        place += ((other < mine) | ((other == mine) & (q < p))).to(tl.int32)
        before += (other < e).to(tl.int32)
        total += (other == e).to(tl.int32)
    at = tl.sum(place, 1)[:, None]
    tl.store(order_ptr + at, p, mask=p < pairs)
    _store_starts(starts_ptr, ends_ptr, tl.sum(before, 1), tl.sum(total, 1), pairs, E, SIZE, BLOCK)


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(
    ids_ptr, rows_ptr, counts_ptr, pairs,
    TOP_K: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (chunks,): counts int32 [chunks, SIZE], the pairs of each expert in every chunk of
    GROUP_ROWS pairs."""
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    e = tl.arange(0, SIZE)[:, None]
    total = tl.zeros([SIZE, COMPARED_PAIRS], tl.int32)
    first = tl.program_id(0) * GROUP_ROWS
    for start in tl.range(0, GROUP_ROWS, COMPARED_PAIRS):
        q = first + start + tl.arange(0, COMPARED_PAIRS)[None, :]
        other = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
        total += (other == e).to(tl.int32)
    tl.store(counts_ptr + tl.program_id(0) * SIZE + tl.arange(0, SIZE), tl.sum(total, 1))


@triton.jit(do_not_specialize=["pairs", "chunks"])
def scan_kernel(
    counts_ptr, rows_ptr, starts_ptr, ends_ptr, pairs, chunks,
    E: tl.constexpr, TOP_K: tl.constexpr, PADDED: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: replaces counts by the place of each chunk's first pair of each expert."""
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    e = tl.arange(0, SIZE)[None, :]
    sums = tl.zeros([TILE, SIZE], tl.int32)
    for start in tl.range(0, chunks, TILE):
        chunk = start + tl.arange(0, TILE)[:, None]
        sums += tl.load(counts_ptr + chunk * SIZE + e, mask=chunk < chunks, other=0)
    total = tl.sum(sums, 0)
    before = tl.cumsum(total, 0) - total
    _store_starts(starts_ptr, ends_ptr, before, total, pairs, E, SIZE, BLOCK)
    for start in tl.range(0, chunks, TILE):
        chunk = start + tl.arange(0, TILE)[:, None]
        at = counts_ptr + chunk * SIZE + e
        here = tl.load(at, mask=chunk < chunks, other=0)
        tl.store(at, tl.cumsum(here, 0) - here + before[None, :], mask=chunk < chunks)
        before += tl.sum(here, 0)


@triton.jit(do_not_specialize=["pairs"])
def place_kernel(
    ids_ptr, places_ptr, rows_ptr, order_ptr, pairs,
    TOP_K: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, GROUP_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (chunks,): write the pairs of a chunk to their places in ``order``."""
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    first = tl.program_id(0) * GROUP_ROWS
    p = first + tl.arange(0, GROUP_ROWS)[:, None]
    mine = tl.load(ids_ptr + p, mask=p < pairs, other=0).to(tl.int32)
    rank = tl.zeros([GROUP_ROWS, COMPARED_PAIRS], tl.int32)
    for start in tl.range(0, GROUP_ROWS, COMPARED_PAIRS):
        q = first + start + tl.arange(0, COMPARED_PAIRS)[None, :]
        other = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
        rank += ((other == mine) & (q < p)).to(tl.int32)
    base = tl.load(places_ptr + tl.program_id(0) * SIZE + mine)
    tl.store(order_ptr + base + tl.sum(rank, 1)[:, None], p, mask=p < pairs)

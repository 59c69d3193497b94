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

from kinfolk_kernels.dependent import start_dependents, wait_for_producers

COMPARED_PAIRS = tl.constexpr(64)
"""Pairs of a chunk that a pair of it is compared with at once."""


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
def sort_kernel(
    ids_ptr, rows_ptr, order_ptr, starts_ptr, ends_ptr, pairs,
    E: tl.constexpr, TOP_K: tl.constexpr, PADDED: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, PLACED: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (1 + pairs / PLACED,), for up to PAIRS pairs: the first program counts the pairs of each
    expert, another one compares PLACED pairs with all."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    q = tl.arange(0, PAIRS)
    expert = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
    first = (tl.program_id(0) - 1) * PLACED
    if first < 0:
        total = tl.histogram(expert, SIZE, mask=q < pairs)
        before = tl.cumsum(total, 0) - total
        _store_starts(starts_ptr, ends_ptr, before, total, pairs, E, SIZE, BLOCK)
    elif first < pairs:
        p = first + tl.arange(0, PLACED)
        mine = tl.load(ids_ptr + p, mask=p < pairs, other=SIZE).to(tl.int32)
        # No two pairs have the same key.
        key, own = expert * PAIRS + q, mine * PAIRS + p
        place = tl.sum((key[None, :] < own[:, None]).to(tl.int32), 1)
        tl.store(order_ptr + place, p, mask=p < pairs)


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(
    ids_ptr, rows_ptr, counts_ptr, pairs,
    TOP_K: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chunks,): counts int32 [chunks, SIZE], the pairs of each expert in every chunk of
    GROUP_ROWS pairs."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    q = tl.program_id(0) * GROUP_ROWS + tl.arange(0, GROUP_ROWS)
    expert = tl.load(ids_ptr + q, mask=q < pairs, other=0).to(tl.int32)
    total = tl.histogram(expert, SIZE, mask=q < pairs)
    tl.store(counts_ptr + tl.program_id(0) * SIZE + tl.arange(0, SIZE), total)


@triton.jit(do_not_specialize=["pairs", "chunks"])
def scan_kernel(
    counts_ptr, rows_ptr, starts_ptr, ends_ptr, pairs, chunks,
    E: tl.constexpr, TOP_K: tl.constexpr, PADDED: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program: replaces counts by the place of each chunk's first pair of each expert."""
    start_dependents(PDL)
    wait_for_producers(PDL)
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
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chunks,): write the pairs of a chunk to their places in ``order``."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    pairs = _real(pairs, rows_ptr, TOP_K, PADDED)
    first = tl.program_id(0) * GROUP_ROWS
    p = first + tl.arange(0, GROUP_ROWS)
    mine = tl.load(ids_ptr + p, mask=p < pairs, other=0).to(tl.int32)
    place = tl.load(places_ptr + tl.program_id(0) * SIZE + mine)
    for start in tl.static_range(0, GROUP_ROWS, COMPARED_PAIRS):
        q = first + start + tl.arange(0, COMPARED_PAIRS)[:, None]
        other = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
        # A lane has pairs p of its own, and sums what it compares them with.
        earlier = (other == mine[None, :]) & (q < p[None, :])
        place += tl.sum(earlier.to(tl.int32), 0)
    tl.store(order_ptr + place, p, mask=p < pairs)

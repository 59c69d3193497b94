"""The kernels of ``flash_prefill``: means of blocks of keys, weights, the choice, and attention.

A block has two chunks of a pool. Products are in units of log2 e, so that exponentials are powers
of two.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.coded_tiles import CHUNK_POSITIONS, load_tile
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.flash_prefill import op

SPARSE = tl.constexpr(op.SPARSE_POSITIONS)
FIRST = tl.constexpr(op.FIRST_BLOCKS)
NEAR = tl.constexpr(op.NEAR_BLOCKS)


@triton.jit(do_not_specialize=["seen"])
def block_means_kernel(
    k_ptr, k_block, blocks, means_ptr, seen,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of keys, key heads): the mean of the ``seen`` keys in a block.

    ``means`` [N, KV_HEADS, DIM]."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    n, head = tl.program_id(0), tl.program_id(1)
    count = tl.minimum(seen - n * SPARSE, SPARSE)
    offset = tl.arange(0, CHUNK_POSITIONS)
    total = tl.zeros([DIM], tl.float32)
    for part in tl.static_range(0, SPARSE // CHUNK_POSITIONS):
        there = part * CHUNK_POSITIONS + offset < count
        block = tl.load(
            blocks + n * (SPARSE // CHUNK_POSITIONS) + part,
            mask=part * CHUNK_POSITIONS < count, other=0,
        )  # fmt: skip
        at = block.to(tl.int64) * k_block + (head * CHUNK_POSITIONS + offset) * DIM
        total += tl.sum(load_tile(k_ptr, at, there, DIM, DIM, tl.float32, True), 0)
    mean = total / count.to(tl.float32)
    to = means_ptr + (n * KV_HEADS + head) * DIM + tl.arange(0, DIM)
    tl.store(to, mean.to(means_ptr.dtype.element_ty))


@triton.jit
def _rows(m, first, start, rows, M: tl.constexpr):
    """The positions of M rows of a block of queries from its row ``first`` on, their rows in the
    step, and which of them are in the step."""
    position = m * SPARSE + first + tl.arange(0, M)
    row = position - start
    return position, row, (row >= 0) & (row < rows)


@triton.jit(do_not_specialize=["start", "rows", "count"])
def block_weights_kernel(
    q_ptr, q_row, q_head, means_ptr, weights_ptr, start, rows, count, factor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, query heads, tiles of N blocks of keys): the binary logarithm of the
    weight of each of ``count`` blocks of keys, minus infinity where no row sees all of it.

    ``weights`` float32 [blocks of queries, heads, count]."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    m = start // SPARSE + tl.program_id(0)
    head = tl.program_id(1)
    n = tl.program_id(2) * N + tl.arange(0, N)
    d = tl.arange(0, DIM)
    kv_head = head // GROUP
    real = n < count
    at = (n * KV_HEADS + kv_head) * DIM
    means = tl.load(means_ptr + at[None, :] + d[:, None], mask=real[None, :], other=0.0)
    last = tl.minimum((n + 1) * SPARSE, start + rows) - 1
    most = tl.full([N], float("-inf"), tl.float32)
    total = tl.zeros([N], tl.float32)
    for first in range(0, SPARSE, M):
        position, row, inside = _rows(m, first, start, rows, M)
        q_at = row.to(tl.int64) * q_row + head * q_head
        q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        x = tl.dot(q, means, out_dtype=tl.float32, input_precision="ieee") * factor
        visible = inside[:, None] & real[None, :] & (position[:, None] >= last[None, :])
        x = tl.where(visible, x, float("-inf"))
        highest = tl.maximum(most, tl.max(x, 0))
        # Where no row sees the block yet, inf - inf would be NaN.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        total = total * tl.exp2(most - base) + tl.sum(tl.exp2(x - base[None, :]), 0)
        most = highest
    weight = tl.where(total > 0, most + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
    place = (tl.program_id(0) * (KV_HEADS * GROUP) + head).to(tl.int64) * count
    tl.store(weights_ptr + place + n, weight, mask=real)


@triton.jit(do_not_specialize=["first_block", "count", "last_blocks"])
def choose_blocks_kernel(
    weights_ptr, kept_ptr, kept_count, first_block, count, last_blocks, log2_alpha,
    N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, query heads): the blocks of keys that are attended to, ascending.

    ``kept`` int32 [blocks of queries, heads, count], ``kept_count`` int32 of the same without the
    last. ``last_blocks``: the first block of queries that attends to all keys."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    m = first_block + tl.program_id(0)
    pair = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    n = tl.arange(0, N)
    here = (n < count) & (n <= m)
    place = pair.to(tl.int64) * count
    weight = tl.load(weights_ptr + place + n, mask=here, other=float("-inf"))
    bar = tl.max(weight, 0) + log2_alpha
    wanted = (n < FIRST) | (m - n < NEAR) | (m >= last_blocks) | (weight >= bar)
    keep = (here & wanted).to(tl.int32)
    index = tl.cumsum(keep, 0) - 1
    tl.store(kept_ptr + place + index, n, mask=keep > 0)
    tl.store(kept_count + pair, tl.sum(keep, 0))


@triton.jit(do_not_specialize=["start", "rows", "count"])
def kept_attention_kernel(
    q_ptr, q_row, q_head, k_ptr, k_block, v_ptr, v_block, blocks, kept_ptr, kept_count, out_ptr,
    start, rows, count, factor,
    GROUP: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, M: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of M rows of the blocks of queries, query heads): attention to the kept blocks of
    keys, each of PARTS chunks.

    ``out`` [rows, heads, VALUE_DIM]."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    tiles: tl.constexpr = SPARSE // M
    number, head = tl.program_id(0) // tiles, tl.program_id(1)
    heads = tl.num_programs(1)
    m = start // SPARSE + number
    position, row, inside = _rows(m, tl.program_id(0) % tiles * M, start, rows, M)
    d, dv = tl.arange(0, DIM), tl.arange(0, VALUE_DIM)
    q_at = row.to(tl.int64) * q_row + head * q_head
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=inside[:, None], other=0.0)
    kv_head = head // GROUP
    k_ptr += kv_head * CHUNK_POSITIONS * DIM
    v_ptr += kv_head * CHUNK_POSITIONS * VALUE_DIM
    offset = tl.arange(0, CHUNK_POSITIONS)
    newest = start + rows - 1
    best = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, VALUE_DIM], tl.float32)
    pair = number * heads + head
    kept_ptr += pair.to(tl.int64) * count
    for step in range(0, tl.load(kept_count + pair) * PARTS):
        chunk = tl.load(kept_ptr + step // PARTS) * PARTS + step % PARTS
        place = chunk * CHUNK_POSITIONS + offset
        there = place <= newest
        # The last block may have no second chunk.
        block = tl.load(blocks + chunk, mask=chunk * CHUNK_POSITIONS <= newest, other=0)
        block = block.to(tl.int64)
        k = load_tile(k_ptr, block * k_block + offset * DIM, there, DIM, DIM, q.dtype, True)
        s = tl.dot(q, tl.trans(k), out_dtype=tl.float32, input_precision="ieee") * factor
        s = tl.where(place[None, :] <= position[:, None], s, float("-inf"))
        highest = tl.maximum(best, tl.max(s, 1))
        # A row that has seen no key yet would compute inf - inf, which is NaN.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp2(s - base[:, None])
        fade = tl.exp2(best - base)
        total = total * fade + tl.sum(p, 1)
        at = block * v_block + offset * VALUE_DIM
        v = load_tile(v_ptr, at, there, VALUE_DIM, VALUE_DIM, q.dtype, True)
        acc = acc * fade[:, None]
        acc = tl.dot(p.to(q.dtype), v, acc, out_dtype=tl.float32, input_precision="ieee")
        best = highest
    acc = acc * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
    to = (row.to(tl.int64) * heads + head) * VALUE_DIM
    tl.store(
        out_ptr + to[:, None] + dv[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside[:, None]
    )

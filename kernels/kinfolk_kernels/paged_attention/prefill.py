"""The prefill kernel: attention of prompt slices over block tables of plain numbers.

A program processes a tile of (row, query head of the group) pairs; tiles begin at the first row of
a sequence. It processes the block table in logical order (Dao, 2023). Only chunks at the edges of
the tile's visible range are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.coded_tiles import CHUNK_POSITIONS, KV_PLAIN
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.paged_attention.combine import gated, load_gates
from kinfolk_kernels.paged_attention.softmax import absorb, load_query, scores


@triton.jit
def _edges(
    chunks, n, limit, newest, inside, window, WINDOW: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """Four entries of a table: the first that some row sees; the first, and the end, of those that
    every row sees whole; the end of those that some row sees."""
    latest = tl.max(limit)
    nearest = tl.min(tl.where(inside, limit, 2147483647))
    oldest = tl.min(tl.where(inside, newest, 2147483647)) - window
    youngest = tl.max(newest) - window
    begin, whole, split, end = 0, 0, 0, 0
    for start in range(0, n, STEP):
        entry = start + tl.arange(0, STEP)
        real = entry < n
        place = tl.load(chunks + entry, mask=real, other=0) * CHUNK_POSITIONS
        end += tl.sum((real & (place <= latest)).to(tl.int32), 0)
        split += tl.sum((real & (place + CHUNK_POSITIONS - 1 <= nearest)).to(tl.int32), 0)
        if WINDOW:
            begin += tl.sum((real & (place + CHUNK_POSITIONS - 1 <= oldest)).to(tl.int32), 0)
            whole += tl.sum((real & (place <= youngest)).to(tl.int32), 0)
    begin = tl.minimum(begin, end)
    whole = tl.minimum(tl.maximum(whole, begin), end)
    split = tl.minimum(tl.maximum(split, whole), end)
    return begin, whole, split, end


@triton.jit
def _walk(
    begin, end, q, limit, newest, inside, m, total, acc, blocks, chunks, k_ptr, k_block, v_ptr,
    v_block, scale, window, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, DOT: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Absorb the entries from ``begin`` to ``end``."""
    parts: tl.constexpr = 64 // BLOCK_N
    latest = tl.max(limit)
    oldest = tl.min(tl.where(inside, newest, 2147483647)) - window
    # The next block is loaded one step ahead, so that loads of keys do not wait for it.
    next_block = tl.load(blocks + begin, mask=begin < end, other=0)
    next_chunk = tl.load(chunks + begin, mask=begin < end, other=0)
    for step in range(begin * parts, end * parts):
        block = next_block.to(tl.int64)
        chunk = next_chunk
        entry = tl.minimum(step + 1, end * parts - 1) // parts
        next_block = tl.load(blocks + entry)
        next_chunk = tl.load(chunks + entry)
        offset = step % parts * BLOCK_N + tl.arange(0, BLOCK_N)
        place = offset
        seen = offset >= 0
        if MASKED:
            place = chunk * CHUNK_POSITIONS + offset
            seen = place <= latest
            if WINDOW:
                seen = seen & (place > oldest)
        s = scores(
            q, q, k_ptr + block * k_block, k_ptr, offset * DIM, offset, seen, DIM, SIZE, KV_PLAIN,
            MASKED,
        )  # fmt: skip
        s = s * scale
        if MASKED:
            visible = place[None, :] <= limit[:, None]
            if WINDOW:
                visible = visible & (place[None, :] > newest[:, None] - window)
            s = tl.where(visible, s, float("-inf"))
        m, total, acc, _ = absorb(
            s, m, total, acc, acc, v_ptr + block * v_block, v_ptr, offset * VALUE_DIM, offset, seen,
            VALUE_DIM, VALUE_SIZE, KV_PLAIN, DOT, MASKED,
        )  # fmt: skip
    return m, total, acc


@triton.jit
def _finish(
    y, row, head, d, inside, gate_ptr, gate_row, gate_head, factor_ptr, factor_row, factor_head,
    factor_step, y_ptr, HEADS: tl.constexpr, DIM: tl.constexpr, GATE: tl.constexpr,
    FACTOR: tl.constexpr,
):  # fmt: skip
    """Apply the gates to dimensions ``d`` of rows y [M, ...] and store them."""
    keep = inside[:, None] & (d < DIM)[None, :]
    wide = row.to(tl.int64)
    gate, factor = load_gates(
        (wide * gate_row + head * gate_head)[:, None] + d[None, :],
        (wide * factor_row + head * factor_head)[:, None] + (d * factor_step)[None, :],
        gate_ptr, factor_ptr, keep, GATE, FACTOR,
    )  # fmt: skip
    y = gated(y, gate, factor, GATE, FACTOR)
    place = ((wide * HEADS + head) * DIM)[:, None] + d[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=keep)


@triton.jit
def _slice_of(
    tile, long, slices, spans, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """The sequence of a tile, if the tiles of all slices stand one after another, the number of the
    tile in it, and the pairs of the sequence: 0 if there is no such tile. A step of prompts may
    have dozens of slices, so ``STEP`` are looked at together."""
    sequence, mine, pairs, first = 0, 0, 0, 0
    for start in range(0, slices, STEP):
        index = start + tl.arange(0, STEP)
        real = index < slices
        others = tl.load(long + index, mask=real, other=0)
        counts = tl.load(spans + 4 * others + 1, mask=real, other=0) * GROUP
        tiles = tl.cdiv(counts, BLOCK_M)
        ends = first + tl.cumsum(tiles, 0)
        here = (tile >= ends - tiles) & (tile < ends)
        sequence += tl.sum(tl.where(here, others, 0), 0)
        mine += tl.sum(tl.where(here, tile - ends + tiles, 0), 0)
        pairs += tl.sum(tl.where(here, counts, 0), 0)
        first += tl.sum(tiles, 0)
    return sequence, mine, pairs


@triton.jit(do_not_specialize=["table_width", "window", "first_head", "slices"])
def prefill_kernel(
    q_ptr, positions, limits, spans, entries, long, slices, blocks, chunks, table_width, first_head,
    k_ptr, k_block, v_ptr, v_block,
    gate_ptr, gate_row, gate_head, factor_ptr, factor_row, factor_head, factor_step,
    y_ptr, q_row, q_head, scale, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, DOT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, GATE: tl.constexpr, FACTOR: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (at least as many programs as the ``slices`` sequences in ``long`` have tiles; key
    heads). The tiles of a slice that see most positions come first. Keys and values begin with key
    head ``first_head``."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    last = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, tile, pairs = _slice_of(last, long, slices, spans, GROUP, BLOCK_M, 32)
    if pairs == 0:
        return
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = pair < pairs
    row = tl.load(spans + 4 * sequence) + pair // GROUP
    q_heads = (first_head + tl.program_id(1)) * GROUP + pair % GROUP
    q, _ = load_query(
        q_ptr, row.to(tl.int64) * q_row + q_heads * q_head, inside, DIM, SIZE, KV_PLAIN, DOT
    )
    newest = tl.load(positions + row, mask=inside, other=0).to(tl.int32)
    limit = tl.load(limits + row, mask=inside, other=-1).to(tl.int32)
    table = sequence.to(tl.int64) * table_width
    begin, whole, split, end = _edges(
        chunks + table, tl.load(entries + sequence), limit, newest, inside, window, WINDOW, 128
    )
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, VALUE_SIZE], tl.float32)
    k_ptr += tl.program_id(1) * CHUNK_POSITIONS * DIM
    v_ptr += tl.program_id(1) * CHUNK_POSITIONS * VALUE_DIM
    for part in tl.static_range(0, 3):
        if WINDOW or part > 0:
            low = begin if part == 0 else (whole if part == 1 else split)
            high = whole if part == 0 else (split if part == 1 else end)
            m, total, acc = _walk(
                low, high, q, limit, newest, inside, m, total, acc, blocks + table, chunks + table,
                k_ptr, k_block, v_ptr, v_block, scale, window, DIM, VALUE_DIM, SIZE, VALUE_SIZE,
                DOT, BLOCK_N, WINDOW, part != 1,
            )  # fmt: skip
    acc = acc * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
    _finish(
        acc, row, q_heads, tl.arange(0, VALUE_SIZE), inside, gate_ptr, gate_row, gate_head,
        factor_ptr, factor_row, factor_head, factor_step, y_ptr, KV_HEADS * GROUP, VALUE_DIM, GATE,
        FACTOR,
    )  # fmt: skip

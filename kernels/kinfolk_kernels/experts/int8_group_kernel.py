"""The expert kernel for a few rows an expert: its rows in int8 on tensor cores, as in
``gemm_int8_kernel``.

Pairs (row, expert) are sorted by expert (``sort_kernels``); a block is up to 8 NT pairs of one
expert. A program is a warp: it multiplies tiles of 32 rows of one matrix with the rows of a block.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.experts.far_records import moved, record_of
from kinfolk_kernels.experts.group_kernels import block_of, narrow
from kinfolk_kernels.linear.gemm_int8_kernel import (
    group_words,
    pair_words,
    products,
    quads_of,
)


@triton.jit
def _row_of(order_ptr, place, TOP_K: tl.constexpr):
    """The row of x of a place among the sorted pairs: with TOP_K that of the pair there, otherwise
    rows are in sorted order."""
    row = place
    if TOP_K > 0:
        row = tl.load(order_ptr + place) // TOP_K
    return row


@triton.jit
def _quad_rows(sums, k: tl.constexpr):
    """Every second sum [32] from k on -> [32, 4]: a quad's rows for one pair. A lane stores them at
    once; one by one, each store would write parts of sectors."""
    both = tl.join(tl.join(sums[k], sums[k + 4]), tl.join(sums[k + 2], sums[k + 6]))
    return tl.reshape(both, [both.shape[0], 4])


@triton.jit(do_not_specialize=["near", "record", "d_step", "pairs"])
def int8_group_kernel(
    words_ptr, scale_ptr, order_ptr, starts_ptr, ends_ptr, bay_ptr,
    first_q, first_high, first_scales, first_supers,
    second_q, second_high, second_scales, second_supers,
    far_ptr,
    y_ptr,
    near,
    record, d_step, pairs, q_step, high_step, scales_step, supers_step,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr,
    FAR: tl.constexpr, GAPS: tl.constexpr, MASKED: tl.constexpr,
    SIZE: tl.constexpr, NT: tl.constexpr, TILES: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (parts of one or two matrices, blocks): y [matrices, P, N] = W x of each pair.

    A part is TILES tiles of 32 rows. With TOP_K, x has a row for TOP_K pairs, and y is in sorted
    order; without, x is in sorted order, and y in the order before sorting. Nothing is stored for
    absent experts. ``bays`` describes what leads to far bays, and FAR and GAPS.
    """
    PARTS: tl.constexpr = ((N + 31) // 32 + TILES - 1) // TILES
    PAIRS: tl.constexpr = (K + 127) // 128
    expert, first, stop = block_of(starts_ptr, ends_ptr, E, SIZE, 8 * NT)
    there_is = expert < E
    bay = tl.load(bay_ptr + expert, mask=there_is, other=-1).to(tl.int64)
    if GAPS:
        there_is = bay >= 0
    if there_is:
        matrix, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
        q_ptr, high_ptr, scales_ptr, supers_ptr = first_q, first_high, first_scales, first_supers
        if matrix > 0:
            q_ptr, high_ptr = second_q, second_high
            scales_ptr, supers_ptr = second_scales, second_supers
        if FAR:
            at = record_of(bay, first_q, far_ptr, near, record)
            q_ptr, high_ptr = moved(q_ptr, at), moved(high_ptr, at)
            scales_ptr, supers_ptr = moved(scales_ptr, at), moved(supers_ptr, at)
        else:
            q_ptr += bay * q_step
            high_ptr += bay * high_step
            scales_ptr += bay * scales_step
            supers_ptr += bay * supers_step
        first_tile = part * TILES
        last_tile = tl.minimum(first_tile + TILES, (N + 31) // 32) - 1
        quad = quads_of(first_tile, N)
        words = group_words(q_ptr, scales_ptr, supers_ptr, quad, 0, 0, K, FORMAT, MASKED)
        words += group_words(q_ptr, scales_ptr, supers_ptr, quad, 0, 1, K, FORMAT, MASKED)
        more = pair_words(high_ptr, supers_ptr, quad, 0, K, FORMAT)
        lane = tl.arange(0, 32)[:, None]
        x_at, d_at, own_at = (), (), ()
        for j in tl.static_range(NT):
            place = tl.minimum(first + 8 * j + lane // 4, stop - 1)
            row = _row_of(order_ptr, place, TOP_K)
            x_at += (words_ptr + row * (K // 4),)
            own_at += (scale_ptr + row,)
            place = first + 8 * j + lane % 4 * 2 + tl.arange(0, 2)[None, :]
            d_at += (scale_ptr + _row_of(order_ptr, tl.minimum(place, stop - 1), TOP_K),)
        for tile in tl.range(first_tile, last_tile + 1):
            zero = tl.zeros([32], tl.float32)
            sums = (zero, zero, zero, zero, zero, zero, zero, zero)
            for _ in tl.static_range(1, NT):
                sums = sums + (zero, zero, zero, zero, zero, zero, zero, zero)
            for pair in tl.range(0, PAIRS):
                # After a tile's last pair comes the first of the next tile. The very last pair
                # prefetches itself.
                on = (pair + 1 == PAIRS) & (tile < last_tile)
                following = tl.where(on, 0, tl.minimum(pair + 1, PAIRS - 1))
                quad = quads_of(tl.where(on, tile + 1, tile), N)
                sums, words, more = products(
                    sums, words, more, pair, following, quad,
                    q_ptr, high_ptr, scales_ptr, supers_ptr, x_at, d_at, own_at, d_step,
                    K, FORMAT, NT, MASKED, ASM,
                )  # fmt: skip
            n = tile * 32 + lane // 4 * 4 + tl.arange(0, 4)[None, :]
            for i in tl.static_range(2 * NT):
                to = first + i // 2 * 8 + lane % 4 * 2 + i % 2
                inside = to < stop
                if TOP_K == 0:
                    to = tl.load(order_ptr + to, mask=inside, other=0)
                out = y_ptr + (matrix.to(tl.int64) * pairs + to) * N + n
                total = _quad_rows(sums, i // 2 * 8 + i % 2)
                tl.store(out, narrow(total, y_ptr), mask=inside & (n < N))

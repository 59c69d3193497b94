"""The kernels of matrices times 65 to 512 float16 rows: weights are unpacked on the way.

A program computes BM rows of a matrix times BN rows of x, 64 columns at a time. A lane loads words
of packed weights, unpacks them in registers to its part of the left operand, and passes them to the
tensor cores without shared memory: rows and columns of the tile are numbered so that the lane that
loads a weight is the lane that must pass it. Rows of x are the right operand, in shared memory.
Columns may be split among programs; a second kernel adds their sums, in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.halves_words import weight_pairs
from kinfolk_kernels.linear.int8_dots import Q4_0, Q5_0, Q5_K, Q6_K, Q8_0
from kinfolk_kernels.linear.segments import FREE, NONE
from kinfolk_kernels.plane_words import high_run_of, place_of, run_of


@triton.jit
def _halves(word):
    """A word -> its two float16, in a new last dimension."""
    low = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(low, (word >> 16).to(tl.int16).to(tl.float16, bitcast=True))


@triton.jit
def _left_operand(w, BM: tl.constexpr, WARPS: tl.constexpr):
    """Eight words of weights of each lane and row -> float16 [BM, 64].

    Row 16 w + 8 h + g (+ 16 WARPS) of the tile is the lane's h-th (h + 2-th) row, and column
    16 i + 8 j + 2 c + p is half p of word 2 i + j, where the lane is c + 4 g + 32 w. That is the
    order in which the tensor cores expect the left operand in registers.
    """
    ROWS: tl.constexpr = BM // (8 * WARPS)
    a = tl.join(_halves(w[0]), _halves(w[1]))
    b = tl.join(_halves(w[2]), _halves(w[3]))
    c = tl.join(_halves(w[4]), _halves(w[5]))
    d = tl.join(_halves(w[6]), _halves(w[7]))
    whole = tl.join(tl.join(a, b), tl.join(c, d))
    whole = tl.reshape(whole, [WARPS, 8, 4, ROWS // 2, 2, 2, 2, 2, 2])
    return tl.reshape(tl.permute(whole, [3, 0, 4, 1, 8, 7, 6, 2, 5]), [BM, 64])


@triton.jit
def _for_lanes(words, WARPS: tl.constexpr):
    """Words of rows [quads, 4] -> [lanes, rows of a lane], the same for the lanes of a quad."""
    SHARED: tl.constexpr = WARPS * 8 // words.shape[0]
    ROWS: tl.constexpr = 4 // SHARED
    words = tl.reshape(words, [WARPS // SHARED, 8, SHARED, ROWS])
    words = tl.reshape(tl.permute(words, [0, 2, 1, 3]), [WARPS * 8, 1, ROWS])
    words = tl.broadcast_to(words, [WARPS * 8, 4, ROWS])
    return tl.reshape(words, [WARPS * 32, ROWS])


@triton.jit
def _by_lane(acc, BM: tl.constexpr, BN: tl.constexpr, WARPS: tl.constexpr):
    """Sums [BM, BN] -> [BN / 4, lanes, rows of a lane], as the lanes hold them."""
    ROWS: tl.constexpr = BM // (8 * WARPS)
    apart = tl.reshape(acc, [ROWS // 2, WARPS, 2, 8, BN // 8, 4, 2])
    return tl.reshape(tl.permute(apart, [4, 6, 1, 3, 5, 0, 2]), [BN // 4, 32 * WARPS, ROWS])


@triton.jit
def _store_by_lane(
    y, y_ptr, N, tile, x_tile, first, factor_ptr, rows,
    BM: tl.constexpr, BN: tl.constexpr, WARPS: tl.constexpr, QUADS: tl.constexpr,
):  # fmt: skip
    """Store sums in the order of ``_by_lane``, from index ``first`` on, times the factors of the
    rows of x. QUADS: N is a multiple of four."""
    ROWS: tl.constexpr = BM // (8 * WARPS)
    SHARED: tl.constexpr = 4 // ROWS
    lane = tl.arange(0, 32 * WARPS)[None, :, None]
    pair = first + tl.arange(0, y.shape[0])[:, None, None]
    m = x_tile * BN + (pair & -2) * 4 + lane % 4 * 2 + (pair & 1)
    n = (lane // (32 * SHARED) * 8 + lane % 32 // 4) * 4 + lane // 32 % SHARED * ROWS
    n = tile * BM + n + tl.arange(0, ROWS)[None, None, :]
    inside, row = n < N, m * N
    if QUADS:
        inside, row = tl.max_constancy(inside, [1, 1, ROWS]), tl.multiple_of(row, [4, 4, 4])
    y *= tl.load(factor_ptr + m)
    tl.store(y_ptr + row + n, y.to(y_ptr.dtype.element_ty), mask=inside & (m < rows))


@triton.jit
def _tile(
    tile,
    x_tile,
    start,
    stop,
    part,
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    y_ptr,
    N,
    x_ptr,
    factor_ptr,
    part_ptr,
    rows,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """Multiply groups ``start`` to ``stop`` of 64 columns; store rows of y, or a part of them in
    place ``part`` unless it is negative."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    RUN: tl.constexpr = 4 if EIGHT else 2
    ROWS: tl.constexpr = BM // (8 * WARPS)
    SHARED: tl.constexpr = 4 // ROWS
    lane = tl.arange(0, 32 * WARPS)
    c = (lane % 4)[:, None]
    r = tl.arange(0, ROWS)[None, :]
    if SHARED > 1:
        r = (lane // 32 % SHARED * ROWS)[:, None] + r
    last = (N + 3) // 4 - 1
    quad = tile * (BM // 4) + lane // (32 * SHARED) * 8 + lane % 32 // 4
    quad = tl.minimum(quad, last).to(tl.int64)[:, None]
    every = tl.minimum(tile * (BM // 4) + tl.arange(0, BM // 4), last).to(tl.int64)[:, None]
    four = tl.arange(0, 4)[None, :]
    q_row = q_ptr + quad * (WORDS * 4) + r
    high_row = high_ptr + quad * (HIGHS * 4) + r
    scales_row = scales_ptr + every * (K // 64 * 4) + four
    supers_row = supers_ptr + every * (SUPERS * 4) + four
    m = x_tile * BN + tl.arange(0, BN)
    x_row = x_ptr + m[:, None] * K + tl.arange(0, 64)[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for group in tl.range(start, stop, num_stages=STAGES):
        # Words c and c + 4, for 8-bit codes also c + 8 and c + 12.
        at, step = run_of(group, K // 64, RUN)
        base = q_row + place_of(c, at, step, RUN) * 4
        far = 4 // RUN * step * 4
        q = (tl.load(base), tl.load(base + far))
        if EIGHT:
            q = q + (tl.load(base + 2 * far), tl.load(base + 3 * far))
        supers = _for_lanes(tl.load(supers_row + group // (1 if SMALL else 4) * 4), WARPS)
        scales = supers
        if not SMALL:
            scales = _for_lanes(tl.load(scales_row + group * 4), WARPS)
        high = q
        if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
            at, step = high_run_of(group, K, FORMAT)
            base = high_row + place_of(c, at, step, 2) * 4
            high = (tl.load(base), tl.load(base + 2 * step * 4))
        x = tl.load(x_row + group * 64)
        w = weight_pairs(q, high, scales, supers, group, FORMAT, ASM)
        acc = tl.dot(_left_operand(w, BM, WARPS), tl.trans(x), acc)
    start_dependents(PDL)
    y = _by_lane(acc, BM, BN, WARPS)
    if part >= 0:
        pair = tl.arange(0, BN // 4)[:, None, None]
        place = (pair * (32 * WARPS) + lane[None, :, None]) * ROWS
        place += tl.arange(0, ROWS)[None, None, :]
        tl.store(part_ptr + part.to(tl.int64) * (BM * BN) + place, y)
    else:
        _store_by_lane(y, y_ptr, N, tile, x_tile, 0, factor_ptr, rows, BM, BN, WARPS, QUADS)


@triton.jit(do_not_specialize=FREE + ["rows", "x_tiles", "whole", "parts"])
def gemm_medium_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, factor_ptr, part_ptr, rows, x_tiles, whole, parts,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WARPS: tl.constexpr,
    STAGES: tl.constexpr, QUADS: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The first ``whole`` tiles of BM rows have a program for each of ``x_tiles`` tiles of BN rows
    of x, the others ``parts`` programs for each, in order. Ends of matrices count tiles of BM rows.
    """
    wait_for_producers(PDL)
    p = tl.program_id(0)
    x_tile = p % x_tiles
    tile = p // x_tiles
    start, stop, part = 0, K // 64, -1
    if tile >= whole:
        split = tile - whole
        which = split % parts
        tile = whole + split // parts
        start, stop = K // 64 * which // parts, K // 64 * (which + 1) // parts
        part = ((tile - whole) * x_tiles + x_tile) * parts + which
    # Matrices of one format share code.
    q, high, scales, supers, y, n, first, format = q0, high0, scales0, supers0, y0, n0, 0, F0
    if tile >= end0:
        q, high, scales, supers, y, n = q1, high1, scales1, supers1, y1, n1
        first, format = end0, F1
    if tile >= end1:
        q, high, scales, supers, y, n = q2, high2, scales2, supers2, y2, n2
        first, format = end1, F2
    if tile >= end2:
        q, high, scales, supers, y, n = q3, high3, scales3, supers3, y3, n3
        first, format = end2, F3
    tile -= first
    if format == F0:
        _tile(tile, x_tile, start, stop, part, q, high, scales, supers, y, n,
              x_ptr, factor_ptr, part_ptr, rows,
              K, F0, BM, BN, WARPS, STAGES, QUADS, PDL, ASM)  # fmt: skip
    elif format == F1:
        if F1 != NONE and F1 != F0:
            _tile(tile, x_tile, start, stop, part, q, high, scales, supers, y, n,
                  x_ptr, factor_ptr, part_ptr, rows,
                  K, F1, BM, BN, WARPS, STAGES, QUADS, PDL, ASM)  # fmt: skip
    elif format == F2:
        if F2 != NONE and F2 != F1 and F2 != F0:
            _tile(tile, x_tile, start, stop, part, q, high, scales, supers, y, n,
                  x_ptr, factor_ptr, part_ptr, rows,
                  K, F2, BM, BN, WARPS, STAGES, QUADS, PDL, ASM)  # fmt: skip
    else:
        if F3 != NONE and F3 != F2 and F3 != F1 and F3 != F0:
            _tile(tile, x_tile, start, stop, part, q, high, scales, supers, y, n,
                  x_ptr, factor_ptr, part_ptr, rows,
                  K, F3, BM, BN, WARPS, STAGES, QUADS, PDL, ASM)  # fmt: skip


@triton.jit(do_not_specialize=FREE + ["rows", "x_tiles", "whole"])
def sum_parts_kernel(
    y0, n0, end0, y1, n1, end1, y2, n2, end2, y3, n3, end3,
    factor_ptr, part_ptr, rows, x_tiles, whole,
    PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WARPS: tl.constexpr,
    SLICE: tl.constexpr, QUADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (tiles in parts, BN / 4 / SLICE): y, the sums of PARTS parts of a tile, in order."""
    start_dependents(PDL)
    p = tl.program_id(0)
    tile = whole + p // x_tiles
    y_ptr, N, before = y0, n0, 0
    if tile >= end0:
        y_ptr, N, before = y1, n1, end0
    if tile >= end1:
        y_ptr, N, before = y2, n2, end1
    if tile >= end2:
        y_ptr, N, before = y3, n3, end2
    ROWS: tl.constexpr = BM // (8 * WARPS)
    first = tl.program_id(1) * SLICE
    pair = first + tl.arange(0, SLICE)[:, None, None]
    place = (pair * (32 * WARPS) + tl.arange(0, 32 * WARPS)[None, :, None]) * ROWS
    place += tl.arange(0, ROWS)[None, None, :]
    at = part_ptr + p.to(tl.int64) * (PARTS * BM * BN) + place
    wait_for_producers(PDL)
    total = tl.load(at)
    for part in tl.static_range(1, PARTS):
        total += tl.load(at + part * (BM * BN))
    _store_by_lane(
        total, y_ptr, N, tile - before, p % x_tiles, first, factor_ptr, rows, BM, BN, WARPS, QUADS
    )

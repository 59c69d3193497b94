"""The kernel of matrices times up to 64 float16 rows on tensor cores.

A program takes tiles of 32 rows of a matrix for each of its warps, times all rows of x. It goes
through the columns in pairs of groups of 64. Copies to shared memory of the words of a matrix and
of x are under way for the pairs that follow. A lane's 16-byte load from there is one word of four
rows; what it unpacks to is the lane's part of the left operand of the matrix unit, so weights never
leave the registers. The matrix unit reads x from shared memory, once for all warps.

The pairs of a matrix, in tiles, are divided into equal parts, one for each program. If several
programs share a tile, the last of them to end adds their sums, in order.

The columns of a pair are in the order of ``half_places``, in x and in the unpacked weights.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.f16_weights import halves_of, high_codes_of, pair_factors, weights_of
from kinfolk_kernels.linear.int8_dots import Q4_0, Q5_0, Q5_K, Q6_K, Q8_0
from kinfolk_kernels.linear.segments import FREE, NONE
from kinfolk_kernels.plane_words import load


@triton.jit
def _word(
    q_ptr,
    high_ptr,
    factors,
    quad,
    pair,
    shifts,
    bits,
    WORD: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    ASM: tl.constexpr,
):
    """The weights of every lane's word ``WORD`` of a pair, for the four rows of ``quad`` [Q, 1, 1]:
    float16 [Q, c, r, e, p, h]."""
    HIGH: tl.constexpr = FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    MASKED: tl.constexpr = K % 128 != 0
    c, r = tl.arange(0, 4)[None, :, None], tl.arange(0, 4)[None, None, :]
    whole = 2 * pair + 1 < K // 64
    there = (whole | (WORD < 2)) & (c + r + quad >= 0) if MASKED else c >= 0
    if FORMAT == Q8_0:
        # Words of four codes: those of the columns that a word of nibbles has.
        word = 2 * WORD + c % 2
        at = word // 4 * 8 + c // 2 * 4 + word % 4
        step = 16
        if MASKED:
            at, step = tl.where(whole, at, 4 * WORD + c), tl.where(whole, 16, 8)
        base = q_ptr + quad * K + (at * 4 + r) + pair * 128
        q = load(base, there, MASKED)
        top = load(base + step * 4, there, MASKED)
    else:
        q = load(q_ptr + quad * (K // 2) + ((4 * WORD + c) * 4 + r) + pair * 64, there, MASKED)
        top = q
    above = (q, q)
    if HIGH:
        at = 2 * WORD + c % 2
        if FORMAT == Q6_K:
            at = 4 * WORD + c % 2 + (pair & 1) * 2 + (pair >> 1) * 16
        else:
            if MASKED:
                at = tl.where(whole, at, 4 * WORD + c)
            at += (pair >> 1) * 8
        high = load(high_ptr + quad * (HIGHS * 4) + (at * 4 + r), there, MASKED)
        above = high_codes_of(high, shifts, FORMAT)
    w = weights_of(q, top, above, factors, bits, WORD >= 2, FORMAT, ASM)
    low = tl.join(halves_of(w[0], ASM), halves_of(w[1], ASM))
    return tl.join(low, tl.join(halves_of(w[2], ASM), halves_of(w[3], ASM)))


@triton.jit
def _in_order(w, WARPS: tl.constexpr):
    """[quads, c, r, e, p, h, j] -> [rows, 64], so that a lane's words are its own part of the left
    operand: row 16 (WARPS s + w) + 8 t + g is row 2 s + t of the four of quad 8 w + g."""
    w = tl.reshape(w, [WARPS, 8, 4, 2, 2, 2, 2, 2, 2])
    return tl.reshape(tl.permute(w, (3, 0, 4, 1, 8, 7, 6, 2, 5)), [32 * WARPS, 64])


@triton.jit
def _by_rows(sums, WARPS: tl.constexpr):
    """Undo the order of rows of ``_in_order``."""
    M: tl.constexpr = sums.shape[1]
    sums = tl.reshape(sums, [2, WARPS, 2, 8, M])
    return tl.reshape(tl.permute(sums, (1, 3, 0, 2, 4)), [32 * WARPS, M])


@triton.jit
def _products(
    sums,
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    x_ptr,
    table_ptr,
    tile,
    start,
    stop,
    N,
    rows,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    M: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    ASM: tl.constexpr,
):
    """Add the products of pairs ``start`` to ``stop`` of a tile."""
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    WIDTH: tl.constexpr = (K + 127) // 128 * 128
    c, r = tl.arange(0, 4)[None, :, None], tl.arange(0, 4)[None, None, :]
    quad = tl.minimum(tile * (8 * WARPS) + tl.arange(0, 8 * WARPS), (N + 3) // 4 - 1)
    quad = quad.to(tl.int64)[:, None, None]
    # Shifts and constants come from memory, like words: from computed numbers, Triton 3.6 would not
    # conclude that weights are where tensor cores need them, and move them through shared memory.
    bits = tl.load(table_ptr + 8 + (c + r) * 0)
    m, column = tl.arange(0, M)[:, None], tl.arange(0, 64)[None, :]
    x_at = x_ptr + m * WIDTH + column
    for pair in tl.range(start, stop, num_stages=STAGES):
        lane = c
        if K % 128 != 0:
            lane = tl.where(2 * pair + 1 < K // 64, c, c & 1)
        group = 2 * pair + (lane >> 1)
        if SMALL:
            supers = tl.load(supers_ptr + quad * (K // 16) + (group * 4 + r))
            scales = supers
        else:
            supers = tl.load(supers_ptr + quad * (K // 64) + r + (pair >> 1) * 4)
            scales = tl.load(scales_ptr + quad * (K // 16) + (group * 4 + r))
        shifts = scales
        if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
            # A word of Q6_K holds the bits of one pair, so its shifts are those of even pairs.
            odd = 0 if FORMAT == Q6_K else (pair & 1) * 4
            shifts = tl.load(table_ptr + (lane + odd))
        factors = pair_factors(scales, supers, FORMAT, ASM)
        for half in tl.static_range(2):
            x = tl.load(x_at + (pair * 128 + half * 64), mask=m < rows, other=0.0)
            w = tl.join(
                _word(q_ptr, high_ptr, factors, quad, pair, shifts, bits, 2 * half,
                      K, FORMAT, ASM),
                _word(q_ptr, high_ptr, factors, quad, pair, shifts, bits, 2 * half + 1,
                      K, FORMAT, ASM),
            )  # fmt: skip
            sums = tl.dot(_in_order(w, WARPS), tl.trans(x), acc=sums, out_dtype=tl.float32)
    return sums


# Inlined: in a function that is called, every product would wait for the one before it.
@triton.jit
def _segment(
    program,
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    y_ptr,
    N,
    x_ptr,
    table_ptr,
    factor_ptr,
    part_ptr,
    done_ptr,
    rows,
    share,
    span,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    M: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """Process ``share`` pairs of groups of one matrix, in tiles of ``span`` pairs; pairs beyond the
    columns are skipped."""
    PAIRS: tl.constexpr = (K + 127) // 128
    TILE: tl.constexpr = 32 * WARPS
    end = (N + TILE - 1) // TILE * span
    start = program * share
    stop = tl.minimum(start + share, end)
    first_tile, last_tile = start // span, (stop - 1) // span
    line, m = tl.arange(0, TILE)[:, None], tl.arange(0, M)[None, :]
    place = m * TILE + line
    wait_for_producers(PDL)
    for tile in tl.range(first_tile, last_tile + 1):
        sums = _products(
            tl.zeros([TILE, M], tl.float32), q_ptr, high_ptr, scales_ptr, supers_ptr, x_ptr,
            table_ptr, tile, tl.maximum(start - tile * span, 0),
            tl.minimum(stop - tile * span, PAIRS), N, rows, K, FORMAT, M, WARPS, STAGES, ASM,
        )  # fmt: skip
        if tile == last_tile:
            start_dependents(PDL)
        sums = _by_rows(sums, WARPS)
        first = tile * span // share
        parts = (tl.minimum((tile + 1) * span, end) - 1) // share - first + 1
        last = parts == 1
        if parts > 1:
            own = 2 * program + (start < tile * span)
            tl.store(part_ptr + own * (TILE * M) + place, sums)
            tl.debug_barrier()
            last = tl.atomic_add(done_ptr + first, 1, sem="acq_rel") == parts - 1
        if last:
            if parts > 1:
                tl.debug_barrier()
                tl.store(done_ptr + first, 0)
                sums = tl.zeros([TILE, M], tl.float32)
                # Unrolled, so that the sums of several parts are on their way at a time.
                for part in tl.range(first, first + parts, loop_unroll_factor=128 // M):
                    other = 2 * part + (part * share < tile * span)
                    at = part_ptr + other * (TILE * M) + place
                    sums += tl.load(at, cache_modifier=".cg")
            n = tile * TILE + line
            y = sums * tl.load(factor_ptr + m, mask=m < rows, other=0.0)
            tl.store(y_ptr + (m * N + n), y.to(y_ptr.dtype.element_ty), mask=(n < N) & (m < rows))


@triton.jit
def _segments(
    p, begin,
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1,
    x_ptr, table_ptr, factor_ptr, part_ptr, done_ptr, rows, share, span,
    F0: tl.constexpr, F1: tl.constexpr,
    K: tl.constexpr, M: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Two matrices, of programs ``begin`` to ``end0`` and from ``end0`` on. They share code if they
    have the same format."""
    PART: tl.constexpr = 2 * 32 * WARPS * M
    if F0 == F1:
        first = p < end0
        begin = tl.where(first, begin, end0)
        _segment(p - begin, tl.where(first, q0, q1), tl.where(first, high0, high1),
                 tl.where(first, scales0, scales1), tl.where(first, supers0, supers1),
                 tl.where(first, y0, y1), tl.where(first, n0, n1), x_ptr, table_ptr, factor_ptr,
                 part_ptr + begin * PART, done_ptr + begin, rows, share, span,
                 K, F0, M, WARPS, STAGES, PDL, ASM)  # fmt: skip
    elif p < end0:
        _segment(p - begin, q0, high0, scales0, supers0, y0, n0, x_ptr, table_ptr, factor_ptr,
                 part_ptr + begin * PART, done_ptr + begin, rows, share, span,
                 K, F0, M, WARPS, STAGES, PDL, ASM)  # fmt: skip
    elif F1 != NONE:
        _segment(p - end0, q1, high1, scales1, supers1, y1, n1, x_ptr, table_ptr, factor_ptr,
                 part_ptr + end0 * PART, done_ptr + end0, rows, share, span,
                 K, F1, M, WARPS, STAGES, PDL, ASM)  # fmt: skip


@triton.jit(do_not_specialize=FREE + ["rows", "share", "span"])
def gemm_f16_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, table_ptr, factor_ptr, part_ptr, done_ptr, rows, share, span,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, M: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A program processes ``share`` pairs of groups of one of up to four matrices. ``done`` is zero
    for each program before and after; ``part`` has room for two tiles of each program.

    Why the next launch may start only when all products are computed, ``gemm_int8_kernel`` says.
    """
    p = tl.program_id(0)
    if p < end1:
        _segments(p, 0, q0, high0, scales0, supers0, y0, n0, end0,
                  q1, high1, scales1, supers1, y1, n1,
                  x_ptr, table_ptr, factor_ptr, part_ptr, done_ptr, rows, share, span,
                  F0, F1, K, M, WARPS, STAGES, PDL, ASM)  # fmt: skip
    elif F2 != NONE:
        _segments(p, end1, q2, high2, scales2, supers2, y2, n2, end2,
                  q3, high3, scales3, supers3, y3, n3,
                  x_ptr, table_ptr, factor_ptr, part_ptr, done_ptr, rows, share, span,
                  F2, F3, K, M, WARPS, STAGES, PDL, ASM)  # fmt: skip

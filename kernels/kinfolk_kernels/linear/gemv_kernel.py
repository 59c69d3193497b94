"""The kernel of a row of int8 times matrices.

A program computes groups of four output rows, NR at a time, ROUNDS times. A lane's 16-byte load is
one word of each of the four rows, and it makes TILES * 4 such loads before it computes anything:
what counts is how many bytes are on their way. All lanes of a program work on the same rows; their
sums meet at the end.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.int8_dots import Q8_0, scaled_dots
from kinfolk_kernels.linear.segments import FREE
from kinfolk_kernels.plane_words import codes_of, load, matrix_words, row_words

NONE = tl.constexpr(-1)


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
    d_ptr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    NR: tl.constexpr,
    ROUNDS: tl.constexpr,
    LANES: tl.constexpr,
    TILES: tl.constexpr,
    MASKED: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """NR * ROUNDS groups of four rows of one matrix: y [N] = W x."""
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    GROUPS: tl.constexpr = LANES // SHARE
    lane = tl.arange(0, LANES)[:, None]
    t = lane % SHARE
    wait_for_producers(PDL)
    zero = tl.zeros([LANES, 4], tl.float32)
    for turn in tl.range(0, ROUNDS):
        first = (program * ROUNDS + turn) * NR
        sums = (zero,)
        for _ in tl.static_range(1, NR):
            sums = sums + (zero,)
        for start in tl.range(0, K // 64, GROUPS * TILES):
            loaded = ()
            for tile in tl.static_range(TILES):
                group = start + tile * GROUPS + lane // SHARE
                for n in tl.static_range(NR):
                    quad = tl.minimum(first + n, (N + 3) // 4 - 1).to(tl.int64)
                    loaded = loaded + (
                        matrix_words(q_ptr, high_ptr, scales_ptr, supers_ptr, quad, group, t,
                                     group < K // 64, K, FORMAT, MASKED),
                    )  # fmt: skip
            for tile in tl.static_range(TILES):
                group = start + tile * GROUPS + lane // SHARE
                there = group < K // 64
                x, top = row_words(x_ptr, group, t, there, FORMAT, MASKED)
                d = load(d_ptr + group, there, MASKED)
                added = ()
                for n in tl.static_range(NR):
                    q, high, scales, supers = loaded[tile * NR + n]
                    codes, tops = codes_of(q, high, group, FORMAT, ASM)
                    dots = scaled_dots(codes, tops, x, top, scales, supers, FORMAT, ASM)
                    added = added + (sums[n] + dots * d,)
                sums = added
        for n in tl.static_range(NR):
            out = (first + n) * 4 + tl.arange(0, 4)
            tl.store(y_ptr + out, tl.sum(sums[n], 0).to(y_ptr.dtype.element_ty), mask=out < N)


@triton.jit(do_not_specialize=FREE)
def gemv_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, d_ptr,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, NR: tl.constexpr, ROUNDS: tl.constexpr, LANES: tl.constexpr,
    TILES: tl.constexpr, MASKED: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The programs of up to four matrices, one after the other."""
    start_dependents(PDL)
    p = tl.program_id(0)
    if p < end0:
        _segment(p, q0, high0, scales0, supers0, y0, n0, x_ptr, d_ptr,
                 K, F0, NR, ROUNDS, LANES, TILES, MASKED, PDL, ASM)  # fmt: skip
    elif p < end1:
        if F1 != NONE:
            _segment(p - end0, q1, high1, scales1, supers1, y1, n1, x_ptr, d_ptr,
                     K, F1, NR, ROUNDS, LANES, TILES, MASKED, PDL, ASM)  # fmt: skip
    elif p < end2:
        if F2 != NONE:
            _segment(p - end1, q2, high2, scales2, supers2, y2, n2, x_ptr, d_ptr,
                     K, F2, NR, ROUNDS, LANES, TILES, MASKED, PDL, ASM)  # fmt: skip
    else:
        if F3 != NONE:
            _segment(p - end2, q3, high3, scales3, supers3, y3, n3, x_ptr, d_ptr,
                     K, F3, NR, ROUNDS, LANES, TILES, MASKED, PDL, ASM)  # fmt: skip

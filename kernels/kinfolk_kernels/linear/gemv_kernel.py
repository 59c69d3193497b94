"""The kernel of matrices times one to four int8 rows, by dot products.

A program computes four columns of the result. A lane's 16-byte load is one word of each of four
rows of the matrix, which is unpacked once and multiplied with each row of x. The loop
is unrolled, so that later loads are issued before the products of earlier ones: speed depends on
how many bytes are in flight. All lanes of a program work on the same rows and add their sums at the
end.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.int8_dots import Q5_0, Q5_K, Q6_K, Q8_0, scaled_dots
from kinfolk_kernels.linear.segments import FREE, NONE
from kinfolk_kernels.plane_words import codes_of, load, matrix_words, row_words

WORDS_AHEAD = tl.constexpr(48)
"""Words of a matrix that a lane asks for before it waits, so that all of them stay in registers."""

TURN_WORDS = tl.constexpr(24)
"""Words of a lane in a turn: sixteen codes, four scales, four more scales."""

HIGH_WORDS = tl.constexpr(16)
"""The words of a lane in a turn that hold bits above nibbles."""


@triton.jit
def _segment(
    quad,
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    y_ptr,
    N,
    x_ptr,
    d_ptr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    FORMAT: tl.constexpr,
    LANES: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """Compute four columns of y [ROWS, N] = x W^T, for one matrix."""
    D_STEP: tl.constexpr = 1 if ROWS == 1 else 8
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    GROUPS: tl.constexpr = LANES // SHARE
    TURNS: tl.constexpr = (K // 64 + GROUPS - 1) // GROUPS
    MASKED: tl.constexpr = K // 64 % GROUPS != 0
    HIGH: tl.constexpr = FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0
    WORDS: tl.constexpr = TURN_WORDS + HIGH_WORDS if HIGH else TURN_WORDS
    MOST_AHEAD: tl.constexpr = WORDS_AHEAD // WORDS if AHEAD else 0
    TURNS_AHEAD: tl.constexpr = TURNS if TURNS < MOST_AHEAD else MOST_AHEAD
    lane = tl.arange(0, LANES)[:, None]
    t = lane % SHARE
    ahead = ()
    for turn in tl.static_range(TURNS_AHEAD):
        group = turn * GROUPS + lane // SHARE
        ahead += (
            matrix_words(
                q_ptr, high_ptr, scales_ptr, supers_ptr, quad.to(tl.int64), group, t,
                group < K // 64, K, FORMAT, MASKED,
            ),
        )  # fmt: skip
    wait_for_producers(PDL)
    # Not before: launches behind a product may read tables of the step early.
    start_dependents(PDL)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums += (tl.zeros([LANES, 4], tl.float32),)
    for turn in tl.static_range(TURNS):
        group = turn * GROUPS + lane // SHARE
        there = group < K // 64
        if turn < TURNS_AHEAD:
            q, high, scales, supers = ahead[turn]
        else:
            q, high, scales, supers = matrix_words(
                q_ptr, high_ptr, scales_ptr, supers_ptr, quad.to(tl.int64), group, t, there,
                K, FORMAT, MASKED,
            )  # fmt: skip
        codes, tops = codes_of(q, high, group, FORMAT, ASM)
        totals = ()
        for m in tl.static_range(ROWS):
            x, top = row_words(x_ptr + m * (K // 4), group, t, there, FORMAT, MASKED)
            d = load(d_ptr + group * D_STEP + m, there, MASKED)
            dots = scaled_dots(codes, tops, x, top, scales, supers, FORMAT, ASM)
            totals += (sums[m] + dots * d,)
        sums = totals
    out = quad * 4 + tl.arange(0, 4)
    for m in tl.static_range(ROWS):
        y = tl.sum(sums[m], 0).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + m * N + out, y, mask=out < N)


@triton.jit(do_not_specialize=FREE)
def gemv_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, d_ptr,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr,
    PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (programs of up to four matrices, numbered one matrix after the other). AHEAD: a launch
    that starts early asks for its first words before it waits."""
    p = tl.program_id(0)
    if p < end0:
        _segment(p, q0, high0, scales0, supers0, y0, n0, x_ptr, d_ptr,
                 K, ROWS, F0, LANES, AHEAD, PDL, ASM)  # fmt: skip
    elif p < end1:
        if F1 != NONE:
            _segment(p - end0, q1, high1, scales1, supers1, y1, n1, x_ptr, d_ptr,
                     K, ROWS, F1, LANES, AHEAD, PDL, ASM)  # fmt: skip
    elif p < end2:
        if F2 != NONE:
            _segment(p - end1, q2, high2, scales2, supers2, y2, n2, x_ptr, d_ptr,
                     K, ROWS, F2, LANES, AHEAD, PDL, ASM)  # fmt: skip
    else:
        if F3 != NONE:
            _segment(p - end2, q3, high3, scales3, supers3, y3, n3, x_ptr, d_ptr,
                     K, ROWS, F3, LANES, AHEAD, PDL, ASM)  # fmt: skip

"""The kernel of matrices times one to four rows of int8.

A program computes groups of four output rows. A lane's 16-byte load is one word of each of the four
rows, and it makes TILES * 4 such loads before it computes anything: what counts is how many bytes
are on their way. All lanes of a program work on the same rows; their sums meet at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.int8_dots import (
    Q4_0,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    low_codes,
    scaled_dots,
    top_codes,
)
from kinfolk_kernels.linear.segments import FREE

NONE = tl.constexpr(-1)


@triton.jit
def _load(pointers, mask, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=mask, other=0)
    return tl.load(pointers)


@triton.jit
def _prefetch(pointers):
    """Ask for the lines that hold ``pointers`` to be brought near."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _row_words(
    x_ptr,
    d_ptr,
    group,
    t,
    there,
    m,
    K: tl.constexpr,
    EIGHT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The words of row ``m`` that a lane needs, and their scale: [lanes, 1] each."""
    base = x_ptr + m * (K // 4)
    at = 16 * group + t
    STEP: tl.constexpr = 4 if EIGHT else 2
    x = (_load(base + at, there, MASKED),)
    for i in tl.static_range(1, 4):
        x = x + (_load(base + at + STEP * i, there, MASKED),)
    top = x
    if not EIGHT:
        top = (_load(base + at + 8, there, MASKED),)
        for i in tl.static_range(1, 4):
            top = top + (_load(base + at + 8 + STEP * i, there, MASKED),)
    return x, top, _load(d_ptr + m * (K // 64) + group, there, MASKED)


@triton.jit
def _matrix_words(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    quad,
    group,
    t,
    there,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """What a lane reads of its group of four rows: words, high bits, scales, supers [lanes, 4]."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    STEP: tl.constexpr = 4 if EIGHT else 2
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    r = tl.arange(0, 4)[None, :]
    base = q_ptr + quad * (WORDS * 4)
    at = (16 if EIGHT else 8) * group + t
    q = (_load(base + at * 4 + r, there, MASKED),)
    for i in tl.static_range(1, 4):
        q = q + (_load(base + (at + STEP * i) * 4 + r, there, MASKED),)
    high = q
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        base = high_ptr + quad * (HIGHS * 4)
        at = group // (2 if FORMAT == Q6_K else 4) * 8 + t
        high = (_load(base + at * 4 + r, there, MASKED),)
        for i in tl.static_range(1, 4):
            high = high + (_load(base + (at + STEP * i) * 4 + r, there, MASKED),)
    base = supers_ptr + quad * (SUPERS * 4)
    supers = _load(base + group // (1 if SMALL else 4) * 4 + r, there, MASKED)
    scales = supers
    if not SMALL:
        scales = _load(scales_ptr + quad * (K // 64 * 4) + group * 4 + r, there, MASKED)
    return q, high, scales, supers


@triton.jit
def _codes(q, high, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """The bytes of four words: low nibbles and high ones, or the words themselves."""
    if FORMAT == Q8_0:
        return q, q
    codes = (low_codes(q[0], high[0], group, FORMAT, ASM),)
    tops = (top_codes(q[0], high[0], group, FORMAT, ASM),)
    for i in tl.static_range(1, 4):
        codes = codes + (low_codes(q[i], high[i], group, FORMAT, ASM),)
        tops = tops + (top_codes(q[i], high[i], group, FORMAT, ASM),)
    return codes, tops


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
    M: tl.constexpr,
    FORMAT: tl.constexpr,
    NR: tl.constexpr,
    LANES: tl.constexpr,
    TILES: tl.constexpr,
    MASKED: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """NR groups of four rows of one matrix: y [M, N] = x W^T."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SHARE: tl.constexpr = 4 if EIGHT else 2
    GROUPS: tl.constexpr = LANES // SHARE
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    lane = tl.arange(0, LANES)[:, None]
    t = lane % SHARE
    if PDL:
        first = q_ptr + program.to(tl.int64) * (NR * WORDS * 4)
        for j in tl.static_range(PREFETCH):
            line = tl.minimum(tl.arange(0, LANES) + j * LANES, NR * WORDS // 8 - 1)
            _prefetch(first + line * 32)
    wait_for_producers(PDL)
    zero = tl.zeros([LANES, 4], tl.float32)
    sums = (zero,)
    for _ in tl.static_range(1, NR * M):
        sums = sums + (zero,)
    for start in tl.range(0, K // 64, GROUPS * TILES):
        loaded = ()
        for tile in tl.static_range(TILES):
            group = start + tile * GROUPS + lane // SHARE
            for n in tl.static_range(NR):
                quad = tl.minimum(program * NR + n, (N + 3) // 4 - 1).to(tl.int64)
                loaded = loaded + (
                    _matrix_words(q_ptr, high_ptr, scales_ptr, supers_ptr, quad, group, t,
                                  group < K // 64, K, FORMAT, MASKED),
                )  # fmt: skip
        for tile in tl.static_range(TILES):
            group = start + tile * GROUPS + lane // SHARE
            rows = ()
            for m in tl.static_range(M):
                rows = rows + (
                    _row_words(x_ptr, d_ptr, group, t, group < K // 64, m, K, EIGHT, MASKED),
                )
            added = ()
            for n in tl.static_range(NR):
                q, high, scales, supers = loaded[tile * NR + n]
                codes, tops = _codes(q, high, group, FORMAT, ASM)
                for m in tl.static_range(M):
                    x, top, d = rows[m]
                    dots = scaled_dots(codes, tops, x, top, scales, supers, FORMAT, ASM)
                    added = added + (sums[n * M + m] + dots * d,)
            sums = added
    for n in tl.static_range(NR):
        out = (program * NR + n) * 4 + tl.arange(0, 4)
        for m in tl.static_range(M):
            y = tl.sum(sums[n * M + m], 0).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + m * N + out, y, mask=out < N)


@triton.jit(do_not_specialize=FREE)
def gemv_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, d_ptr,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, M: tl.constexpr,
    NR: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
    MASKED: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The programs of up to four matrices, one after the other."""
    start_dependents(PDL)
    p = tl.program_id(0)
    if p < end0:
        _segment(p, q0, high0, scales0, supers0, y0, n0, x_ptr, d_ptr,
                 K, M, F0, NR, LANES, TILES, MASKED, PREFETCH, PDL, ASM)  # fmt: skip
    elif p < end1:
        if F1 != NONE:
            _segment(p - end0, q1, high1, scales1, supers1, y1, n1, x_ptr, d_ptr,
                     K, M, F1, NR, LANES, TILES, MASKED, PREFETCH, PDL, ASM)  # fmt: skip
    elif p < end2:
        if F2 != NONE:
            _segment(p - end1, q2, high2, scales2, supers2, y2, n2, x_ptr, d_ptr,
                     K, M, F2, NR, LANES, TILES, MASKED, PREFETCH, PDL, ASM)  # fmt: skip
    else:
        if F3 != NONE:
            _segment(p - end2, q3, high3, scales3, supers3, y3, n3, x_ptr, d_ptr,
                     K, M, F3, NR, LANES, TILES, MASKED, PREFETCH, PDL, ASM)  # fmt: skip

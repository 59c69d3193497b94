"""The kernel of matrices times up to 64 float16 rows on tensor cores.

A warp processes 32 rows of a matrix, eight groups of four. A lane's 16-byte load is one word of
four rows, which it unpacks in registers to its part of the left operand. The warps of a program
process different columns of the same rows; only their sums go through shared memory. The columns
may also be split among programs; the last of these to end adds their sums, in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.halves_words import four, multiply_accumulate, weight_pairs
from kinfolk_kernels.linear.int8_dots import Q4_0, Q5_0, Q5_K, Q6_K, Q8_0
from kinfolk_kernels.linear.segments import FREE, NONE
from kinfolk_kernels.plane_words import high_run_of, load, place_of, run_of


@triton.jit
def _group(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    x_ptr,
    quad,
    lane,
    group,
    there,
    K: tl.constexpr,
    NT: tl.constexpr,
    FORMAT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A lane's loads for a group: words, high bits, scales and supers [L, 4], and words of x."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    RUN: tl.constexpr = 4 if EIGHT else 2
    r = tl.arange(0, 4)[None, :]
    c = (lane % 4)[:, None]
    group = group[:, None]
    there = there[:, None]
    # Words c and c + 4, for 8-bit codes also c + 8 and c + 12.
    at, step = run_of(group, K // 64, RUN)
    base = q_ptr + quad * (WORDS * 4) + place_of(c, at, step, RUN) * 4 + r
    far = 4 // RUN * step * 4
    q = (load(base, there, MASKED), load(base + far, there, MASKED))
    if EIGHT:
        q = q + (load(base + 2 * far, there, MASKED), load(base + 3 * far, there, MASKED))
    supers = load(
        supers_ptr + quad * (SUPERS * 4) + group // (1 if SMALL else 4) * 4 + r, there, MASKED
    )
    scales = supers
    if not SMALL:
        scales = load(scales_ptr + quad * (K // 64 * 4) + group * 4 + r, there, MASKED)
    high = q
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        at, step = high_run_of(group, K, FORMAT)
        base = high_ptr + quad * (HIGHS * 4) + place_of(c, at, step, 2) * 4 + r
        high = (load(base, there, MASKED), load(base + 2 * step * 4, there, MASKED))
    x_at = x_ptr + group * (NT * 256) + (lane % 32)[:, None] * 4 + r
    x = (load(x_at, there, MASKED), load(x_at + 128, there, MASKED))
    for j in tl.static_range(1, NT):
        low = load(x_at + j * 256, there, MASKED)
        x = x + (low, load(x_at + j * 256 + 128, there, MASKED))
    return q, high, scales, supers, x


# Not inlined, for the reason given in ``gemm_int8_kernel``.
@triton.jit(noinline=True)
def _segment(
    program,
    tile,
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    y_ptr,
    N,
    x_ptr,
    factor_ptr,
    part_ptr,
    done_ptr,
    rows,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    NT: tl.constexpr,
    WARPS: tl.constexpr,
    SPLIT: tl.constexpr,
    TILES: tl.constexpr,
    MASKED: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """Compute 32 columns of y [rows, N] = x W^T for one matrix, or a partial sum of them."""
    L: tl.constexpr = 32 * WARPS
    STEP: tl.constexpr = WARPS * SPLIT
    lane = tl.arange(0, L)
    g = lane % 32 // 4
    quad = program * 8 + g
    quad = tl.minimum(quad, (N + 3) // 4 - 1).to(tl.int64)[:, None]
    mine = tl.program_id(1) * WARPS + lane // 32
    zero = tl.zeros([L], tl.float32)
    wait_for_producers(PDL)
    sums = (zero, zero, zero, zero, zero, zero, zero, zero)
    for _ in tl.static_range(1, NT):
        sums = sums + (zero, zero, zero, zero, zero, zero, zero, zero)
    for start in tl.range(0, K // 64, STEP * TILES):
        loaded = ()
        for i in tl.static_range(TILES):
            group = start + i * STEP + mine
            there = group < K // 64
            loaded = loaded + (
                _group(q_ptr, high_ptr, scales_ptr, supers_ptr, x_ptr, quad, lane, group, there,
                       K, NT, FORMAT, MASKED),
            )  # fmt: skip
        for i in tl.static_range(TILES):
            group = start + i * STEP + mine
            q, high, scales, supers, x = loaded[i]
            w = weight_pairs(q, high, scales, supers, group[:, None], FORMAT, ASM)
            for run in tl.static_range(4):
                a = four(w[2 * run])
                b = four(w[2 * run + 1])
                added = ()
                for j in tl.static_range(NT):
                    near = four(x[2 * j + run // 2])
                    x0, x1 = near[run % 2 * 2], near[run % 2 * 2 + 1]
                    added = added + multiply_accumulate(
                        a[0], a[1], b[0], b[1], x0, x1,
                        sums[8 * j], sums[8 * j + 1], sums[8 * j + 2], sums[8 * j + 3], WARPS, ASM,
                    )  # fmt: skip
                    added = added + multiply_accumulate(
                        a[2], a[3], b[2], b[3], x0, x1,
                        sums[8 * j + 4], sums[8 * j + 5], sums[8 * j + 6], sums[8 * j + 7],
                        WARPS, ASM,
                    )  # fmt: skip
                sums = added
    # The sums of a lane are contiguous, eight for each eight rows of x; those of warps are added.
    one = tl.arange(0, 32)[:, None]
    k = tl.arange(0, 8)[None, :]
    place = tile * (NT * 256) + one * 8 + k
    parts = tl.num_programs(0) * (NT * 256)
    last = tile >= 0
    if SPLIT > 1:
        for j in tl.static_range(NT):
            to = part_ptr + tl.program_id(1) * parts + place + j * 256
            tl.store(to, _summed(sums, j, WARPS))
        tl.debug_barrier()
        last = tl.atomic_add(done_ptr + tile, 1, sem="acq_rel") == SPLIT - 1
    if last:
        if SPLIT > 1:
            tl.debug_barrier()
            tl.store(done_ptr + tile, 0)
        n = program * 32 + one // 4 * 4 + k // 2
        for j in tl.static_range(NT):
            if SPLIT == 1:
                total = _summed(sums, j, WARPS)
            else:
                total = tl.zeros([32, 8], tl.float32)
                for part in tl.static_range(SPLIT):
                    at = part_ptr + part * parts + place + j * 256
                    total += tl.load(at, cache_modifier=".cg")
            m = j * 8 + one % 4 * 2 + k % 2
            total *= tl.load(factor_ptr + m)
            y = total.to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + m * N + n, y, mask=(n < N) & (m < rows))


@triton.jit
def _summed(sums, j: tl.constexpr, WARPS: tl.constexpr):
    """The eight ``sums`` [32 * WARPS] from index 8 j -> [32, 8], added over warps."""
    a = tl.join(sums[8 * j], sums[8 * j + 4])
    b = tl.join(sums[8 * j + 1], sums[8 * j + 5])
    c = tl.join(sums[8 * j + 2], sums[8 * j + 6])
    d = tl.join(sums[8 * j + 3], sums[8 * j + 7])
    both = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.sum(tl.reshape(both, [WARPS, 32, 8]), 0)


@triton.jit(do_not_specialize=FREE + ["rows"])
def gemm_small_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, factor_ptr, part_ptr, done_ptr, rows,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, NT: tl.constexpr, WARPS: tl.constexpr, SPLIT: tl.constexpr,
    TILES: tl.constexpr, MASKED: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (groups of 32 rows of up to four matrices, parts of the columns)."""
    start_dependents(PDL)
    p = tl.program_id(0)
    if p < end0:
        _segment(p, p, q0, high0, scales0, supers0, y0, n0,
                 x_ptr, factor_ptr, part_ptr, done_ptr, rows,
                 K, F0, NT, WARPS, SPLIT, TILES, MASKED, PDL, ASM)  # fmt: skip
    elif p < end1:
        if F1 != NONE:
            _segment(p - end0, p, q1, high1, scales1, supers1, y1, n1,
                     x_ptr, factor_ptr, part_ptr, done_ptr, rows,
                     K, F1, NT, WARPS, SPLIT, TILES, MASKED, PDL, ASM)  # fmt: skip
    elif p < end2:
        if F2 != NONE:
            _segment(p - end1, p, q2, high2, scales2, supers2, y2, n2,
                     x_ptr, factor_ptr, part_ptr, done_ptr, rows,
                     K, F2, NT, WARPS, SPLIT, TILES, MASKED, PDL, ASM)  # fmt: skip
    else:
        if F3 != NONE:
            _segment(p - end2, p, q3, high3, scales3, supers3, y3, n3,
                     x_ptr, factor_ptr, part_ptr, done_ptr, rows,
                     K, F3, NT, WARPS, SPLIT, TILES, MASKED, PDL, ASM)  # fmt: skip

"""The kernel of matrices times 2 to 32 int8 rows on tensor cores.

A program is a warp. It processes 32 rows of a matrix, eight groups of four, in pairs of groups of
64 columns. It prefetches the words of the next pair while it computes one, and those of the next
tile while it ends one. A lane's 16-byte load is one word of four rows; its unpacked nibbles are the
lane's part of the left operand, so weights never leave the registers. Sums of 32 products are
integers; they are multiplied by integer scales, and only then converted to float32.

The pairs of a matrix, in tiles of 32 rows, are divided into equal parts, at most as many as warps
run at a time. If several programs share a tile, the last of them to end adds their sums, in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.halves_words import four
from kinfolk_kernels.linear.int8_dots import (
    ONES,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    low_codes,
    top_codes,
)
from kinfolk_kernels.linear.int8_products import (
    minima,
    multiply_16,
    multiply_32,
    multiply_pairs,
)
from kinfolk_kernels.linear.segments import FREE, NONE
from kinfolk_kernels.packed_integers import byte_of, first_half, in_two_parts, second_half
from kinfolk_kernels.plane_words import high_run_of, load, place_of, run_of

UPPER = tl.constexpr(-0x55555556)
"""A mask of the upper bit of every two."""


@triton.jit
def group_words(
    q_ptr,
    scales_ptr,
    supers_ptr,
    quad,
    pair,
    i,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A lane's loads of the ``i``-th 64 columns of a pair, [32, 4] each for its four rows: words c
    and c + 4, for 8-bit codes also c + 8 and c + 12, then scales."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    RUN: tl.constexpr = 4 if EIGHT else 2
    c, r = tl.arange(0, 32)[:, None] % 4, tl.arange(0, 4)[None, :]
    there = 2 * pair + i + 0 * c < K // 64
    at, step = run_of(i, 2, RUN)
    if K % 128 != 0:
        _, step = run_of(2 * pair + i, K // 64, RUN)
    # Terms of the pair and terms of the lane are kept apart: the latter are computed once.
    base = q_ptr + quad * (WORDS * 4) + (place_of(c, at, step, RUN) * 4 + r) + pair * (32 * RUN)
    far = 4 // RUN * step * 4
    loaded = (load(base, there, MASKED), load(base + far, there, MASKED))
    if EIGHT:
        loaded += (load(base + 2 * far, there, MASKED), load(base + 3 * far, there, MASKED))
    base = supers_ptr if SMALL else scales_ptr
    return loaded + (load(base + quad * (K // 16) + r + pair * 8 + i * 4, there, MASKED),)


@triton.jit
def pair_words(high_ptr, supers_ptr, quad, pair, K: tl.constexpr, FORMAT: tl.constexpr):
    """The further loads of a lane for both groups of a pair, [32, 4] each: the words with the bits
    above the nibbles, and the block's scales."""
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    c, r = tl.arange(0, 32)[:, None] % 4, tl.arange(0, 4)[None, :]
    loaded = ()
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        at, step = high_run_of(2 * pair, K, FORMAT)
        base = high_ptr + quad * (HIGHS * 4) + (place_of(c, 0, step, 2) * 4 + r) + at * 4
        loaded += (tl.load(base), tl.load(base + 2 * step * 4))
    if not SMALL:
        loaded += (tl.load(supers_ptr + quad * (K // 64) + r + (pair >> 1) * 4),)
    return loaded


@triton.jit
def quads_of(tile, N):
    """The group of four rows of a tile that a lane reads, [32, 1], clamped to the last group."""
    g = tl.arange(0, 32)[:, None] // 4
    return tl.minimum(tile * 8 + g, (N + 3) // 4 - 1).to(tl.int64)


@triton.jit
def _words_of_x(x_at, c, pair, i, K: tl.constexpr, MASKED: tl.constexpr):
    """A lane's four words of 64 columns of a row of x that begins at ``x_at`` [32, 1]: c, c + 4,
    c + 8 and c + 12."""
    at = x_at + (4 * c + tl.arange(0, 4)[None, :])
    return four(load(at + pair * 32 + i * 16, 2 * pair + i + 0 * c < K // 64, MASKED))


@triton.jit
def _scales_of_x(d_at, d_step, c, pair, i, K: tl.constexpr, MASKED: tl.constexpr):
    """Scales of the two rows of x whose first scales are at ``d_at`` [32, 2]."""
    there = 2 * pair + i + 0 * c < K // 64
    return tl.split(load(d_at + pair * (2 * d_step) + i * d_step, there, MASKED))


@triton.jit
def _operands(q, high, INDEX: tl.constexpr, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """Words of a group, the first or second of a pair by ``INDEX``, -> signed bytes for each of the
    four rows: two words for 32 columns, two for the next 32."""
    if FORMAT == Q8_0:
        return four(q[0]), four(q[1]), four(q[2]), four(q[3])
    if FORMAT == Q6_K:
        return (
            four(_sextets(q[0] << 2, high[0] << (6 - 4 * INDEX))),
            four(_sextets(q[1] << 2, high[1] << (6 - 4 * INDEX))),
            four(_sextets(q[0] >> 2, high[0] << (4 - 4 * INDEX))),
            four(_sextets(q[1] >> 2, high[1] << (4 - 4 * INDEX))),
        )
    return (
        four(low_codes(q[0], high[0], INDEX, FORMAT, ASM)),
        four(low_codes(q[1], high[1], INDEX, FORMAT, ASM)),
        four(top_codes(q[0], high[0], INDEX, FORMAT, ASM)),
        four(top_codes(q[1], high[1], INDEX, FORMAT, ASM)),
    )


@triton.jit
def _sextets(nibbles, high):
    """(code - 32) * 4 of four 6-bit codes, as signed bytes, so that no offset is left to subtract.
    The upper bits of ``high`` are inverted before."""
    return (nibbles & 0x3C3C3C3C) | (high & -0x3F3F3F40)


@triton.jit
def _begun(x, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """Initial values of the sums of a group's two runs of 32 columns, four numbers each: minus the
    offset of the codes times the sums of x."""
    OFFSET: tl.constexpr = -16 if FORMAT == Q5_0 else -8 if FORMAT == Q4_0 else 0
    z = tl.zeros(x[0].shape, tl.int32)
    begun = ((z, z, z, z), (z, z, z, z))
    if OFFSET != 0:
        less = tl.full(z.shape, (OFFSET & 255) * ONES - (1 << 32), tl.int32)
        begun = ()
        for run in tl.static_range(2):
            near, far = x[2 * run], x[2 * run + 1]
            begun += (multiply_32(less, less, less, less, near, far, z, z, z, z, ASM),)
    return begun


@triton.jit
def _scaled_sums(
    w,
    x,
    begun,
    scales,
    supers,
    R: tl.constexpr,
    FORMAT: tl.constexpr,
    ASM: tl.constexpr,
):
    """The products of rows R and R + 1 of each group of four with eight rows of x over 64 columns:
    four float32, without the scale of x and without minima."""
    sums = ()
    for half in tl.static_range(2):
        near, far = w[2 * half], w[2 * half + 1]
        e = begun[half]
        if FORMAT == Q6_K:
            # Scales are stored in the order 0, 2, 1, 3 of the runs of 16 columns.
            f = multiply_16(near[R], near[R + 1], x[2 * half], e[0], e[1], e[2], e[3], ASM)
            b = multiply_16(far[R], far[R + 1], x[2 * half + 1], e[0], e[1], e[2], e[3], ASM)
            s, t = byte_of(scales[R], half), byte_of(scales[R + 1], half)
            u, v = byte_of(scales[R], half + 2), byte_of(scales[R + 1], half + 2)
            sums += (
                f[0] * s + b[0] * u,
                f[1] * s + b[1] * u,
                f[2] * t + b[2] * v,
                f[3] * t + b[3] * v,
            )
        else:
            sums += multiply_32(
                near[R], near[R + 1], far[R], far[R + 1], x[2 * half], x[2 * half + 1],
                e[0], e[1], e[2], e[3], ASM,
            )  # fmt: skip
    if FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0:
        s, t = first_half(scales[R]), first_half(scales[R + 1])
        u, v = second_half(scales[R]), second_half(scales[R + 1])
        # Left to the compiler, either product is the one that is not rounded, by chance for each
        # row of x: its place in a step would change its bits.
        return (
            tl.fma(sums[0].to(tl.float32), s, sums[4].to(tl.float32) * u),
            tl.fma(sums[1].to(tl.float32), s, sums[5].to(tl.float32) * u),
            tl.fma(sums[2].to(tl.float32), t, sums[6].to(tl.float32) * v),
            tl.fma(sums[3].to(tl.float32), t, sums[7].to(tl.float32) * v),
        )
    s, t, u, v = 1, 1, 1, 1
    if FORMAT != Q6_K:
        s, t = byte_of(scales[R], 0), byte_of(scales[R + 1], 0)
        u, v = byte_of(scales[R], 1), byte_of(scales[R + 1], 1)
    own, other = first_half(supers[R]), first_half(supers[R + 1])
    if FORMAT == Q6_K:
        own, other = own * 0.25, other * 0.25
    return (
        (sums[0] * s + sums[4] * u).to(tl.float32) * own,
        (sums[1] * s + sums[5] * u).to(tl.float32) * own,
        (sums[2] * t + sums[6] * v).to(tl.float32) * other,
        (sums[3] * t + sums[7] * v).to(tl.float32) * other,
    )


# Not inlined: segments of one format share the code, and one of Triton's passes takes a time that
# grows with the cube of a function's length.
@triton.jit(noinline=True)
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
    part_ptr,
    done_ptr,
    rows,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    NT: tl.constexpr,
    SHARE: tl.constexpr,
    SPAN: tl.constexpr,
    MASKED: tl.constexpr,
    PDL: tl.constexpr,
    ASM: tl.constexpr,
):
    """Process SHARE pairs of groups of one matrix, in tiles of 32 rows and SPAN pairs; pairs beyond
    the columns are skipped."""
    PAIRS: tl.constexpr = (K + 127) // 128
    MOST: tl.constexpr = SPAN // SHARE if SPAN % SHARE == 0 else (SPAN - 2) // SHARE + 2
    end = (N + 31) // 32 * SPAN
    start, stop = program * SHARE, tl.minimum((program + 1) * SHARE, end)
    first_tile, last_tile = start // SPAN, (stop - 1) // SPAN
    wait_for_producers(PDL)
    quad, pair = quads_of(first_tile, N), start - first_tile * SPAN
    words = group_words(q_ptr, scales_ptr, supers_ptr, quad, pair, 0, K, FORMAT, MASKED)
    words += group_words(q_ptr, scales_ptr, supers_ptr, quad, pair, 1, K, FORMAT, MASKED)
    more = pair_words(high_ptr, supers_ptr, quad, pair, K, FORMAT)
    c, g = tl.arange(0, 32)[:, None] % 4, tl.arange(0, 32)[:, None] // 4
    x_at, d_at, own_at = (), (), ()
    for j in tl.static_range(NT):
        x_at += (x_ptr + tl.minimum(8 * j + g, rows - 1) * (K // 4),)
        d_at += (d_ptr + (8 * j + 2 * c + tl.arange(0, 2)[None, :]),)
        own_at += (d_ptr + (8 * j + g),)
    for tile in tl.range(first_tile, last_tile + 1):
        stop_pair = tl.minimum(stop - tile * SPAN, PAIRS)
        zero = tl.zeros([32], tl.float32)
        sums = (zero, zero, zero, zero, zero, zero, zero, zero)
        for _ in tl.static_range(1, NT):
            sums = sums + (zero, zero, zero, zero, zero, zero, zero, zero)
        for pair in tl.range(tl.maximum(start - tile * SPAN, 0), stop_pair):
            # The pair to prefetch after a tile's last one is the first of the next tile. The very
            # last pair prefetches itself.
            on = (pair + 1 == stop_pair) & (tile < last_tile)
            following = tl.where(on, 0, tl.minimum(pair + 1, stop_pair - 1))
            quad = quads_of(tl.where(on, tile + 1, tile), N)
            sums, words, more = products(
                sums, words, more, pair, following, quad,
                q_ptr, high_ptr, scales_ptr, supers_ptr, x_at, d_at, own_at, 8 * NT,
                K, FORMAT, NT, MASKED, ASM,
            )  # fmt: skip
        if tile == last_tile:
            start_dependents(PDL)
        first = tile * SPAN // SHARE
        parts = (tl.minimum((tile + 1) * SPAN, end) - 1) // SHARE - first + 1
        last = parts == 1
        if parts > 1:
            for j in tl.static_range(NT):
                tl.store(_part(part_ptr, program, tile, j, NT, SHARE, SPAN), beside(sums, j))
            tl.debug_barrier()
            last = tl.atomic_add(done_ptr + first, 1, sem="acq_rel") == parts - 1
        if last:
            if parts > 1:
                tl.debug_barrier()
                tl.store(done_ptr + first, 0)
            for j in tl.static_range(NT):
                total = beside(sums, j)
                if parts > 1:
                    total = tl.zeros([32, 8], tl.float32)
                    for p in tl.static_range(MOST):
                        at = _part(part_ptr, first + p, tile, j, NT, SHARE, SPAN)
                        there = tl.full([32, 8], p, tl.int32) < parts
                        total += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
                _store(total, tile, j, y_ptr, N, rows)


@triton.jit
def _part(
    part_ptr, program, tile, j: tl.constexpr, NT: tl.constexpr, SHARE: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """The place of a program's sums for a tile that it shares with others, its first or its last:
    [32, 8] for each eight rows of x, with the sums of a lane contiguous."""
    place = 2 * program + (program * SHARE // SPAN != tile)
    at = part_ptr + (place * NT + j) * 256
    return at + tl.arange(0, 32)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def _store(total, tile, j: tl.constexpr, y_ptr, N, rows):
    """Store the sums of a tile, eight a lane, for the ``j``-th eight rows of x."""
    lane, k = tl.arange(0, 32)[:, None], tl.arange(0, 8)[None, :]
    n = tile * 32 + lane // 4 * 4 + k // 2
    m = j * 8 + lane % 4 * 2 + k % 2
    tl.store(y_ptr + m * N + n, total.to(y_ptr.dtype.element_ty), mask=(n < N) & (m < rows))


@triton.jit
def products(
    sums,
    words,
    more,
    pair,
    following,
    quad,
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    x_at,
    d_at,
    own_at,
    d_step,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    NT: tl.constexpr,
    MASKED: tl.constexpr,
    ASM: tl.constexpr,
):
    """Add a pair's products with the rows of x to eight sums [32] for each eight rows.

    ``words`` and ``more`` were loaded for this pair. Returns the sums, and those of the
    ``following`` pair of the rows of ``quad``, whose loads are issued when the current words are
    unpacked. For each eight rows of x, a lane 4 g + c has three addresses: ``x_at`` [32, 1] of the
    words of row g, ``d_at`` [32, 2] of the first scales of rows 2 c and 2 c + 1, and ``own_at``
    [32, 1] of that of row g. The scales of the next 64 columns are ``d_step`` further on.
    """
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    LEAST: tl.constexpr = FORMAT == Q4_K or FORMAT == Q5_K
    HIGH: tl.constexpr = FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0
    Q: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    lane = tl.arange(0, 32)
    c = lane[:, None] % 4
    none = tl.zeros([32], tl.int32)
    high, supers = words, (none, none, none, none)
    if HIGH:
        high = more
    if FORMAT == Q5_K or FORMAT == Q5_0:
        high = (more[0] >> (pair % 2 * 4), more[1] >> (pair % 2 * 4))
    if FORMAT == Q6_K:
        high = (more[0] ^ UPPER, more[1] ^ UPPER)
    if not SMALL:
        supers = four(more[2 if HIGH else 0])
    runs = ()
    if LEAST:
        for _ in tl.static_range(NT):
            runs += (none, none, none, none)
    own_scales = words[Q]
    if LEAST:
        own_scales = tl.where(c % 2 == 0, words[Q], words[2 * Q + 1])
    next_words, next_more = (), ()
    for i in tl.static_range(2):
        q = (words[i * (Q + 1)], words[i * (Q + 1) + 1])
        if FORMAT == Q8_0:
            q += (words[i * (Q + 1) + 2], words[i * (Q + 1) + 3])
        w = _operands(q, high, i, FORMAT, ASM)
        scales = four(words[i * (Q + 1) + Q])
        next_words += group_words(
            q_ptr, scales_ptr, supers_ptr, quad, following, i, K, FORMAT, MASKED
        )
        if i == 1:
            next_more = pair_words(high_ptr, supers_ptr, quad, following, K, FORMAT)
        x = ()
        d = ()
        for j in tl.static_range(NT):
            x += (_words_of_x(x_at[j], c, pair, i, K, MASKED),)
            d += (_scales_of_x(d_at[j], d_step, c, pair, i, K, MASKED),)
        added = ()
        for j in tl.static_range(NT):
            begun = _begun(x[j], FORMAT, ASM)
            for half in tl.static_range(2):
                e = _scaled_sums(w, x[j], begun, scales, supers, 2 * half, FORMAT, ASM)
                added += (
                    sums[8 * j + 4 * half] + e[0] * d[j][0],
                    sums[8 * j + 4 * half + 1] + e[1] * d[j][1],
                    sums[8 * j + 4 * half + 2] + e[2] * d[j][0],
                    sums[8 * j + 4 * half + 3] + e[3] * d[j][1],
                )
        sums = added
        if LEAST:
            # Sums of x: its words are the left operand, where every second word counts as row
            # g + 8, and two columns of the right operand are ones. So lanes with c % 2 == i get
            # the sums of the two runs of x's row g, each in two parts.
            near = tl.where(lane % 16 // 4 == 2 * i, ONES, 0)
            far = tl.where(lane % 16 // 4 == 2 * i + 1, ONES, 0)
            further = ()
            for j in tl.static_range(NT):
                further += multiply_32(
                    x[j][0], x[j][1], x[j][2], x[j][3], near, far,
                    runs[4 * j], runs[4 * j + 1], runs[4 * j + 2], runs[4 * j + 3], ASM,
                )  # fmt: skip
            runs = further
    if LEAST:
        # Minima of a lane's own group times the sums of x there: lanes with c < 2 hold the leading
        # bits of the sums, the other lanes the remaining bits.
        least = four(minima(own_scales, ASM))
        added = ()
        for j in tl.static_range(NT):
            own = tl.reshape(tl.load(own_at[j] + c % 2 * d_step + pair * (2 * d_step)), [32])
            coarse, fine = in_two_parts(
                (runs[4 * j] + runs[4 * j + 2]).to(tl.float32) * own,
                (runs[4 * j + 1] + runs[4 * j + 3]).to(tl.float32) * own,
            )
            b = tl.where(lane % 4 < 2, coarse, fine)
            for half in tl.static_range(2):
                e = multiply_pairs(least[2 * half], least[2 * half + 1], b, ASM)
                s, t = second_half(supers[2 * half]), second_half(supers[2 * half + 1])
                added += (
                    sums[8 * j + 4 * half] + e[0] * s,
                    sums[8 * j + 4 * half + 1] + e[1] * s,
                    sums[8 * j + 4 * half + 2] + e[2] * t,
                    sums[8 * j + 4 * half + 3] + e[3] * t,
                )
        sums = added
    return sums, next_words, next_more


@triton.jit
def beside(sums, j: tl.constexpr):
    """Eight sums [32] from 8 j on -> [32, 8]."""
    a = tl.join(sums[8 * j], sums[8 * j + 4])
    b = tl.join(sums[8 * j + 1], sums[8 * j + 5])
    c = tl.join(sums[8 * j + 2], sums[8 * j + 6])
    d = tl.join(sums[8 * j + 3], sums[8 * j + 7])
    both = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(both, [both.shape[0], 8])


@triton.jit(do_not_specialize=FREE + ["rows"])
def gemm_int8_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    x_ptr, d_ptr, part_ptr, done_ptr, rows,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, NT: tl.constexpr, SHARE: tl.constexpr, SPAN: tl.constexpr,
    MASKED: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A program processes SHARE pairs of groups of one of up to four matrices. ``done`` is zero for
    each program before and after; ``part`` has room for two tiles of each program.

    The next launch may start only when all products are computed: started earlier, its programs
    would all go to the multiprocessors that finish first.
    """
    PART: tl.constexpr = 2 * NT * 256
    p = tl.program_id(0)
    if p < end0:
        _segment(p, q0, high0, scales0, supers0, y0, n0,
                 x_ptr, d_ptr, part_ptr, done_ptr, rows,
                 K, F0, NT, SHARE, SPAN, MASKED, PDL, ASM)  # fmt: skip
    elif p < end1:
        if F1 != NONE:
            _segment(p - end0, q1, high1, scales1, supers1, y1, n1,
                     x_ptr, d_ptr, part_ptr + end0 * PART, done_ptr + end0, rows,
                     K, F1, NT, SHARE, SPAN, MASKED, PDL, ASM)  # fmt: skip
    elif p < end2:
        if F2 != NONE:
            _segment(p - end1, q2, high2, scales2, supers2, y2, n2,
                     x_ptr, d_ptr, part_ptr + end1 * PART, done_ptr + end1, rows,
                     K, F2, NT, SHARE, SPAN, MASKED, PDL, ASM)  # fmt: skip
    else:
        if F3 != NONE:
            _segment(p - end2, q3, high3, scales3, supers3, y3, n3,
                     x_ptr, d_ptr, part_ptr + end2 * PART, done_ptr + end2, rows,
                     K, F3, NT, SHARE, SPAN, MASKED, PDL, ASM)  # fmt: skip

"""Matrix times one to four rows of int8, bound by the reading of the matrix.

A program computes groups of four output rows. A thread's tile element is one 32-bit word of each of
four rows, 16 bytes in one load; the words of x are shared by the four rows. Inside a group of 64
weights everything is integer arithmetic; scales are applied once a word.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.packed_integers import (
    byte_of,
    dot2_high,
    dot2_low,
    dot4,
    first_half,
    pack_halves,
    second_half,
)
from kinfolk_kernels.planes import LAYOUTS, Planes

Q4_K, Q5_K, Q6_K = (tl.constexpr(LAYOUTS[name].number) for name in ("Q4_K", "Q5_K", "Q6_K"))
Q8_0, Q4_0, Q5_0 = (tl.constexpr(LAYOUTS[name].number) for name in ("Q8_0", "Q4_0", "Q5_0"))
IQ4_XS = tl.constexpr(LAYOUTS["IQ4_XS"].number)
MAX_ROWS = 4


@triton.jit
def _lookup(codes, ASM: tl.constexpr):
    """Four nibbles in bytes -> four values of the non-linear table, as signed bytes."""
    if ASM:
        # Entries 0-7 and 8-15 by two permutes each way; bit 3 of a nibble picks the half.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 i, lo, hi, m, t;
            and.b32 i, $1, 0x07070707;
            shr.u32 t, i, 4;   or.b32 i, i, t;
            and.b32 t, i, 0xff; shr.u32 m, i, 8; and.b32 m, m, 0xff00; or.b32 i, t, m;
            prmt.b32 lo, 0xbfad9881, 0xf6eaddcf, i;
            prmt.b32 hi, 0x26190d01, 0x71594535, i;
            shr.u32 m, $1, 3; and.b32 m, m, 0x01010101; mul.lo.u32 m, m, 0xff;
            not.b32 t, m; and.b32 lo, lo, t; and.b32 hi, hi, m; or.b32 $0, lo, hi;
            }""",
            "=r,r",
            [codes],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    out = tl.zeros_like(codes)
    for byte in tl.static_range(4):
        code = (codes >> (8 * byte)) & 15
        value = tl.where(code == 0, -127, 0)
        value += tl.where(code == 1, -104, 0) + tl.where(code == 2, -83, 0)
        value += tl.where(code == 3, -65, 0) + tl.where(code == 4, -49, 0)
        value += tl.where(code == 5, -35, 0) + tl.where(code == 6, -22, 0)
        value += tl.where(code == 7, -10, 0) + tl.where(code == 8, 1, 0)
        value += tl.where(code == 9, 13, 0) + tl.where(code == 10, 25, 0)
        value += tl.where(code == 11, 38, 0) + tl.where(code == 12, 53, 0)
        value += tl.where(code == 13, 69, 0) + tl.where(code == 14, 89, 0)
        value += tl.where(code == 15, 113, 0)
        out = out | ((value & 255) << (8 * byte))
    return out


@triton.jit
def _scaled_dots(
    q, high, scales, supers, group, j, inside, x_ptr, s_ptr, FORMAT: tl.constexpr, ASM: tl.constexpr
):
    """One tile of words against one row of x -> float32, before the scale of x.

    q, high, scales, supers int32 [NR, BW, 4]; group and j [BW]: group and word of the tile's words.
    """
    z = tl.zeros_like(q)
    if FORMAT == Q8_0:
        x = tl.load(x_ptr + j, mask=inside, other=0)[None, :, None]
        p = dot4(q, tl.broadcast_to(x, q.shape), z, ASM)
        upper = ((j // 8) % 2)[None, :, None]
        d = tl.where(upper == 0, first_half(supers), second_half(supers))
        return p.to(tl.float32) * d
    at = j + 8 * group
    x0 = tl.broadcast_to(tl.load(x_ptr + at, mask=inside, other=0)[None, :, None], q.shape)
    x1 = tl.broadcast_to(tl.load(x_ptr + at + 8, mask=inside, other=0)[None, :, None], q.shape)
    s0 = tl.broadcast_to(tl.load(s_ptr + at, mask=inside, other=0)[None, :, None], q.shape)
    s1 = tl.broadcast_to(tl.load(s_ptr + at + 8, mask=inside, other=0)[None, :, None], q.shape)
    low = q & 0x0F0F0F0F
    top = (q >> 4) & 0x0F0F0F0F
    if FORMAT == Q4_K or FORMAT == Q5_K:
        if FORMAT == Q5_K:
            bits = high >> (2 * (group % 4))[None, :, None]
            low = low | ((bits & 0x01010101) << 4)
            top = top | (((bits >> 1) & 0x01010101) << 4)
        p = pack_halves(dot4(low, x0, z, ASM), dot4(top, x1, z, ASM), ASM)
        least = dot2_high(pack_halves(s0, s1, ASM), scales, ASM)
        product = dot2_low(p, scales, ASM)
        return product.to(tl.float32) * first_half(supers) - least.to(tl.float32) * second_half(
            supers
        )
    if FORMAT == Q6_K:
        bits = high >> (4 * (group % 2))[None, :, None]
        low = low | ((bits & 0x03030303) << 4)
        top = top | (((bits >> 2) & 0x03030303) << 4)
        p = pack_halves(dot4(low, x0, -32 * s0, ASM), dot4(top, x1, -32 * s1, ASM), ASM)
        # Scales 0 and 2 belong to the first half of the group's words, 1 and 3 to the second.
        own = scales >> (16 * ((j % 8) // 4))[None, :, None]
        return dot2_low(p, own, ASM).to(tl.float32) * first_half(supers)
    if FORMAT == IQ4_XS:
        # Table values reach 127: a sum of four products does not fit 16 bits.
        p0 = dot4(_lookup(low, ASM), x0, z, ASM) * byte_of(scales, 0)
        p1 = dot4(_lookup(top, ASM), x1, z, ASM) * byte_of(scales, 1)
        return (p0 + p1).to(tl.float32) * first_half(supers)
    offset: tl.constexpr = -8 if FORMAT == Q4_0 else -16
    if FORMAT == Q5_0:
        bits = high >> (2 * (group % 4))[None, :, None]
        low = low | ((bits & 0x01010101) << 4)
        top = top | (((bits >> 1) & 0x01010101) << 4)
    p0 = dot4(low, x0, offset * s0, ASM).to(tl.float32)
    p1 = dot4(top, x1, offset * s1, ASM).to(tl.float32)
    return p0 * first_half(supers) + p1 * second_half(supers)


@triton.jit
def _row(
    q,
    high,
    scales,
    supers,
    group,
    j,
    inside,
    x_ptr,
    d_ptr,
    s_ptr,
    m,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    ASM: tl.constexpr,
):
    """What a tile adds to row ``m`` of the result."""
    dots = _scaled_dots(
        q,
        high,
        scales,
        supers,
        group,
        j,
        inside,
        x_ptr + m * (K // 4),
        s_ptr + m * (K // 4),
        FORMAT,
        ASM,
    )
    return dots * tl.load(d_ptr + m * (K // 64) + group, mask=inside, other=0.0)[None, :, None]


@triton.jit
def gemv_kernel(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    x_ptr,
    d_ptr,
    s_ptr,
    y_ptr,
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    FORMAT: tl.constexpr,
    NR: tl.constexpr,
    BW: tl.constexpr,
    STAGES: tl.constexpr,
    ASM: tl.constexpr,
):
    """y [M, N] = x W^T for NR groups of four rows of W a program."""
    WORDS: tl.constexpr = K // 4 if FORMAT == Q8_0 else K // 8
    PER_GROUP: tl.constexpr = 16 if FORMAT == Q8_0 else 8
    SMALL_BLOCKS: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    SUPERS: tl.constexpr = K // 64 if SMALL_BLOCKS else K // 256
    PER_SUPER: tl.constexpr = 1 if SMALL_BLOCKS else 4
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    r = tl.arange(0, 4)[None, None, :]
    rows = (tl.program_id(0) * NR + tl.arange(0, NR)).to(tl.int64)[:, None, None]
    valid = rows * 4 < N
    acc0 = tl.zeros([NR, BW, 4], tl.float32)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for start in tl.range(0, WORDS, BW, num_stages=STAGES):
        j = start + tl.arange(0, BW)
        inside = j < WORDS
        group = j // PER_GROUP
        mask = valid & inside[None, :, None]
        word = j[None, :, None]
        q = tl.load(
            q_ptr + (rows * WORDS + word) * 4 + r, mask=mask, other=0, eviction_policy="evict_first"
        )
        supers = tl.load(
            supers_ptr + (rows * SUPERS + (group // PER_SUPER)[None, :, None]) * 4 + r,
            mask=mask,
            other=0,
        )
        high = q
        scales = q
        if FORMAT == Q5_K or FORMAT == Q5_0:
            at = (group // 4 * 8 + j % 8)[None, :, None]
            high = tl.load(high_ptr + (rows * HIGHS + at) * 4 + r, mask=mask, other=0)
        if FORMAT == Q6_K:
            at = (group // 2 * 8 + j % 8)[None, :, None]
            high = tl.load(high_ptr + (rows * HIGHS + at) * 4 + r, mask=mask, other=0)
        if not SMALL_BLOCKS:
            at = group[None, :, None]
            scales = tl.load(scales_ptr + (rows * (K // 64) + at) * 4 + r, mask=mask, other=0)
        acc0 += _row(
            q, high, scales, supers, group, j, inside, x_ptr, d_ptr, s_ptr, 0, K, FORMAT, ASM
        )
        if M > 1:
            acc1 += _row(
                q, high, scales, supers, group, j, inside, x_ptr, d_ptr, s_ptr, 1, K, FORMAT, ASM
            )
        if M > 2:
            acc2 += _row(
                q, high, scales, supers, group, j, inside, x_ptr, d_ptr, s_ptr, 2, K, FORMAT, ASM
            )
        if M > 3:
            acc3 += _row(
                q, high, scales, supers, group, j, inside, x_ptr, d_ptr, s_ptr, 3, K, FORMAT, ASM
            )
    out = tl.program_id(0) * NR * 4 + tl.arange(0, NR)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(y_ptr + out, tl.sum(acc0, 1), mask=out < N)
    if M > 1:
        tl.store(y_ptr + N + out, tl.sum(acc1, 1), mask=out < N)
    if M > 2:
        tl.store(y_ptr + 2 * N + out, tl.sum(acc2, 1), mask=out < N)
    if M > 3:
        tl.store(y_ptr + 3 * N + out, tl.sum(acc3, 1), mask=out < N)


def gemv(
    planes: Planes,
    x: Int8Rows,
    out: torch.Tensor,
    *,
    groups: int = 1,
    words: int = 128,
    warps: int = 4,
    stages: int = 1,
    asm: bool = True,
) -> None:
    """out float32 [M, N] = x W^T, M <= 4. A program takes ``groups`` times four rows of W and
    ``words`` words of each in a step of its loop."""
    grid = (triton.cdiv(planes.rows, 4 * groups),)
    gemv_kernel[grid](
        planes.q,
        planes.q if planes.high is None else planes.high,
        planes.q if planes.scales is None else planes.scales,
        planes.supers,
        x.words,
        x.scale,
        x.sums,
        out,
        planes.rows,
        K=planes.columns,
        M=out.shape[0],
        FORMAT=LAYOUTS[planes.format].number,
        NR=groups,
        BW=words,
        STAGES=stages,
        ASM=asm,
        num_warps=warps,
    )

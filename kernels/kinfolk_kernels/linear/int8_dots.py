"""Dot products of packed weights with int8 rows, format by format.

A lane holds four words of one group of 64 weights for each of four matrix rows: for 4-bit codes the
words ``t``, ``t + 2``, ``t + 4`` and ``t + 6`` of eight, for 8-bit codes ``t``, ``t + 4``,
``t + 8`` and ``t + 12`` of sixteen, where ``t`` is the lane's number in the group. So scales are
applied once for 32 weights, to exact integer sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.packed_integers import (
    byte_of,
    dot2_high,
    dot2_low,
    dot4,
    first_half,
    pack_halves,
    second_half,
)
from kinfolk_kernels.planes import LAYOUTS

Q4_K, Q5_K, Q6_K = (tl.constexpr(LAYOUTS[name].number) for name in ("Q4_K", "Q5_K", "Q6_K"))
Q8_0, Q4_0, Q5_0 = (tl.constexpr(LAYOUTS[name].number) for name in ("Q8_0", "Q4_0", "Q5_0"))
IQ4_XS = tl.constexpr(LAYOUTS["IQ4_XS"].number)

ONES = tl.constexpr(0x01010101)


@triton.jit
def table_value(code):
    """Nibbles -> the non-linear table, int32."""
    # The entries of the table plus 127, four in a word.
    low = tl.where(code < 4, 0x3E2C1700, 0x75695C4E)
    top = tl.where(code < 12, -0x5A677380, -0x0F273B4C)
    word = tl.where(code < 8, low, top)
    return ((word >> (8 * (code % 4))) & 255) - 127


@triton.jit
def looked_up(codes, ASM: tl.constexpr):
    """Four nibbles in bytes -> four values of the non-linear table, as signed bytes."""
    if ASM:
        # One permute looks up entries 0-7, one entries 8-15; bit 3 of a nibble selects the result.
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
        out = out | ((table_value((codes >> (8 * byte)) & 15) & 255) << (8 * byte))
    return out


@triton.jit
def low_codes(q, high, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """The codes of a word's low nibbles as four bytes; ``group`` [lanes, 1]."""
    codes = q & 0x0F0F0F0F
    if FORMAT == Q5_K or FORMAT == Q5_0:
        codes = codes | ((high >> (2 * (group % 4)) << 4) & 0x10101010)
    if FORMAT == Q6_K:
        codes = codes | ((high << (4 - 4 * (group % 2))) & 0x30303030)
    if FORMAT == IQ4_XS:
        codes = looked_up(codes, ASM)
    return codes


@triton.jit
def top_codes(q, high, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """The codes of a word's high nibbles as four bytes."""
    codes = (q >> 4) & 0x0F0F0F0F
    if FORMAT == Q5_K or FORMAT == Q5_0:
        codes = codes | ((high >> (2 * (group % 4)) << 3) & 0x10101010)
    if FORMAT == Q6_K:
        codes = codes | ((high << (4 - 4 * (group % 2)) >> 2) & 0x30303030)
    if FORMAT == IQ4_XS:
        codes = looked_up(codes, ASM)
    return codes


@triton.jit
def _chain(a, b, c, x_a, x_b, ASM: tl.constexpr):
    """c + the dot products of words a and b with the words ``x_a`` and ``x_b`` [lanes, 1]."""
    c = dot4(a, tl.broadcast_to(x_a, a.shape), c, ASM)
    return dot4(b, tl.broadcast_to(x_b, b.shape), c, ASM)


@triton.jit
def _sum_of(x_a, x_b, factor: tl.constexpr, ASM: tl.constexpr):
    """``factor`` times the sum of the bytes of two words."""
    ones = tl.full(x_a.shape, ONES, tl.int32)
    total = dot4(x_b, ones, dot4(x_a, ones, tl.zeros_like(x_a), ASM), ASM)
    return total * factor


@triton.jit
def _sum_of_two(a, scale_a, b, scale_b):
    """Two whole numbers times their scales. Left to the compiler, either product is the one that is
    not rounded, by chance for each row of x: its place in a step would change its bits."""
    return tl.fma(a.to(tl.float32), scale_a, b.to(tl.float32) * scale_b)


@triton.jit
def scaled_dots(codes, tops, x, x_top, scales, supers, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """Dot products of four words of four rows with a row of x -> float32 [lanes, 4], without the
    scale of x.

    codes, tops: four words each; x, x_top: the four words of x that they are multiplied with,
    [lanes, 1].
    """
    z = tl.zeros_like(codes[0])
    if FORMAT == Q8_0:
        a = _chain(codes[0], codes[1], z, x[0], x[1], ASM)
        b = _chain(codes[2], codes[3], z, x[2], x[3], ASM)
        return _sum_of_two(a, first_half(supers), b, second_half(supers))
    OFFSET: tl.constexpr = (
        -32 if FORMAT == Q6_K else -16 if FORMAT == Q5_0 else -8 if FORMAT == Q4_0 else 1
    )
    low_a = tl.broadcast_to(_sum_of(x[0], x[1], OFFSET, ASM), z.shape)
    low_b = tl.broadcast_to(_sum_of(x[2], x[3], OFFSET, ASM), z.shape)
    top_a = tl.broadcast_to(_sum_of(x_top[0], x_top[1], OFFSET, ASM), z.shape)
    top_b = tl.broadcast_to(_sum_of(x_top[2], x_top[3], OFFSET, ASM), z.shape)
    if FORMAT == Q4_K or FORMAT == Q5_K:
        low = _chain(codes[0], codes[1], z, x[0], x[1], ASM)
        top = _chain(tops[0], tops[1], z, x_top[0], x_top[1], ASM)
        if FORMAT == Q4_K:
            # Sums of 16 products of codes below 16 fit 16 bits.
            low = _chain(codes[2], codes[3], low, x[2], x[3], ASM)
            top = _chain(tops[2], tops[3], top, x_top[2], x_top[3], ASM)
            product = dot2_low(pack_halves(low, top, ASM), scales, z, ASM)
        else:
            product = dot2_low(pack_halves(low, top, ASM), scales, z, ASM)
            low = _chain(codes[2], codes[3], z, x[2], x[3], ASM)
            top = _chain(tops[2], tops[3], z, x_top[2], x_top[3], ASM)
            product = dot2_low(pack_halves(low, top, ASM), scales, product, ASM)
        least = dot2_high(pack_halves(low_a + low_b, top_a + top_b, ASM), scales, z, ASM)
        return _sum_of_two(product, first_half(supers), least, -second_half(supers))
    if FORMAT == Q6_K:
        # Scales 0 and 2 are those of the first half of the group's words, 1 and 3 of the second.
        low = _chain(codes[0], codes[1], low_a, x[0], x[1], ASM)
        top = _chain(tops[0], tops[1], top_a, x_top[0], x_top[1], ASM)
        product = dot2_low(pack_halves(low, top, ASM), scales, z, ASM)
        low = _chain(codes[2], codes[3], low_b, x[2], x[3], ASM)
        top = _chain(tops[2], tops[3], top_b, x_top[2], x_top[3], ASM)
        product = dot2_high(pack_halves(low, top, ASM), scales, product, ASM)
        return product.to(tl.float32) * first_half(supers)
    if FORMAT == IQ4_XS:
        # Values of the table reach 127: their sums do not fit 16 bits.
        low = _chain(codes[0], codes[1], z, x[0], x[1], ASM)
        low = _chain(codes[2], codes[3], low, x[2], x[3], ASM) * byte_of(scales, 0)
        top = _chain(tops[0], tops[1], z, x_top[0], x_top[1], ASM)
        top = _chain(tops[2], tops[3], top, x_top[2], x_top[3], ASM) * byte_of(scales, 1)
        return (low + top).to(tl.float32) * first_half(supers)
    low = _chain(codes[0], codes[1], low_a + low_b, x[0], x[1], ASM)
    low = _chain(codes[2], codes[3], low, x[2], x[3], ASM)
    top = _chain(tops[0], tops[1], top_a + top_b, x_top[0], x_top[1], ASM)
    top = _chain(tops[2], tops[3], top, x_top[2], x_top[3], ASM)
    return _sum_of_two(low, first_half(supers), top, second_half(supers))

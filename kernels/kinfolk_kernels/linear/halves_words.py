"""Packed weights as pairs of float16 in a word, and the tensor core product of such words.

The functions work word by word, so that a weight stays in the registers of one lane from the load
to the tensor core. Without ``ASM`` they compute the same in plain arithmetic, for the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.linear.int8_dots import (
    IQ4_XS,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    low_codes,
    top_codes,
)

THOUSANDS = tl.constexpr(0x64006400)
"""The bits of float16 1024, twice: a byte set in the low bits is added to 1024."""


@triton.jit
def _value(word, HALF: tl.constexpr):
    """One half of a word as float16."""
    shifted = word >> 16 if HALF else word
    return (shifted & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _pair(low, high):
    """Two float16 -> a word."""
    a = low.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return a | (high.to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def sub_pairs(a, b, ASM: tl.constexpr):
    """a - b in float16, both halves."""
    if ASM:
        return tl.inline_asm_elementwise(
            "sub.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    return _pair(_value(a, 0) - _value(b, 0), _value(a, 1) - _value(b, 1))


@triton.jit
def mul_pairs(a, b, ASM: tl.constexpr):
    """a * b in float16, both halves."""
    if ASM:
        return tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    return _pair(_value(a, 0) * _value(b, 0), _value(a, 1) * _value(b, 1))


@triton.jit
def fma_pairs(a, b, c, ASM: tl.constexpr):
    """a * b + c in float16 with one rounding, both halves."""
    if ASM:
        return tl.inline_asm_elementwise(
            "fma.rn.f16x2 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, b, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    low = _value(a, 0).to(tl.float32) * _value(b, 0).to(tl.float32) + _value(c, 0).to(tl.float32)
    high = _value(a, 1).to(tl.float32) * _value(b, 1).to(tl.float32) + _value(c, 1).to(tl.float32)
    return _pair(low.to(tl.float16), high.to(tl.float16))


@triton.jit
def twice(word, HALF: tl.constexpr, ASM: tl.constexpr):
    """One half of a word, copied to both halves."""
    if ASM:
        if HALF:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, $1, 0x3232;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
            )
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $1, 0x1010;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
        )
    half = (word >> 16) & 0xFFFF if HALF else word & 0xFFFF
    return half | (half << 16)


@triton.jit
def _thousands(word, HALF: tl.constexpr, ASM: tl.constexpr):
    """Two unsigned bytes b of a word -> the pair 1024 + b."""
    if ASM:
        bits = tl.full(word.shape, THOUSANDS, tl.int32)
        if HALF:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, $2, 0x5352;",
                "=r,r,r",
                [word, bits],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            )
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x5150;",
            "=r,r,r",
            [word, bits],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    two = (word >> 16) & 0xFFFF if HALF else word & 0xFFFF
    return (two & 0xFF) | ((two & 0xFF00) << 8) | THOUSANDS


@triton.jit
def _numbers(
    word, HALF: tl.constexpr, OFFSET: tl.constexpr, SIGNED: tl.constexpr, ASM: tl.constexpr
):
    """Two bytes of a word minus OFFSET, as a pair of float16; exact."""
    # float16 1024 + n has the bits 0x6400 + n; a signed byte is 128 more without its sign.
    BITS: tl.constexpr = 0x6400 + OFFSET + (128 if SIGNED else 0)
    if SIGNED:
        word = word ^ -0x7F7F7F80
    less = tl.full(word.shape, BITS | BITS << 16, tl.int32)
    return sub_pairs(_thousands(word, HALF, ASM), less, ASM)


@triton.jit
def factors(scales, supers, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """The factors and minima of a group, as words of two equal float16.

    Returns (a, b, c, d, e, f): factors of columns 0-15, 16-31, 32-47 and 48-63, negated minima of
    0-31 and 32-63. Each is float16(super * scale).
    """
    if FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0:
        low, top = twice(supers, 0, ASM), twice(supers, 1, ASM)
        return low, low, top, top, low, top
    d = twice(supers, 0, ASM)
    if FORMAT == Q6_K:
        front = mul_pairs(_numbers(scales, 0, 0, True, ASM), d, ASM)
        back = mul_pairs(_numbers(scales, 1, 0, True, ASM), d, ASM)
        return (
            twice(front, 0, ASM),
            twice(back, 0, ASM),
            twice(front, 1, ASM),
            twice(back, 1, ASM),
            d,
            d,
        )
    both = mul_pairs(_numbers(scales, 0, 0, FORMAT == IQ4_XS, ASM), d, ASM)
    low, top = twice(both, 0, ASM), twice(both, 1, ASM)
    if FORMAT == IQ4_XS:
        return low, low, top, top, d, d
    less = twice(supers, 1, ASM) ^ -0x7FFF8000
    both = mul_pairs(_numbers(scales, 1, 0, False, ASM), less, ASM)
    return low, low, top, top, twice(both, 0, ASM), twice(both, 1, ASM)


@triton.jit
def _weights(codes, factor, less, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """Four codes of a word -> the pairs of weights (0, 1) and (2, 3)."""
    SIGNED: tl.constexpr = FORMAT == Q8_0 or FORMAT == IQ4_XS
    OFFSET: tl.constexpr = (
        32 if FORMAT == Q6_K else 16 if FORMAT == Q5_0 else 8 if FORMAT == Q4_0 else 0
    )
    first = _numbers(codes, 0, OFFSET, SIGNED, ASM)
    second = _numbers(codes, 1, OFFSET, SIGNED, ASM)
    if FORMAT == Q4_K or FORMAT == Q5_K:
        return fma_pairs(first, factor, less, ASM), fma_pairs(second, factor, less, ASM)
    return mul_pairs(first, factor, ASM), mul_pairs(second, factor, ASM)


@triton.jit
def weight_pairs(q, high, scales, supers, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """A lane's words of a group -> eight words of weights: two for each run of 16 columns.

    q: for 4-bit codes words c and c + 4, for 8-bit codes words c, c + 4, c + 8 and c + 12.
    """
    a, b, c, d, low_less, top_less = factors(scales, supers, FORMAT, ASM)
    if FORMAT == Q8_0:
        w0 = _weights(q[0], a, low_less, FORMAT, ASM)
        w1 = _weights(q[1], b, low_less, FORMAT, ASM)
        w2 = _weights(q[2], c, top_less, FORMAT, ASM)
        w3 = _weights(q[3], d, top_less, FORMAT, ASM)
    else:
        low0, low1 = (
            low_codes(q[0], high[0], group, FORMAT, ASM),
            low_codes(q[1], high[1], group, FORMAT, ASM),
        )
        top0, top1 = (
            top_codes(q[0], high[0], group, FORMAT, ASM),
            top_codes(q[1], high[1], group, FORMAT, ASM),
        )
        w0 = _weights(low0, a, low_less, FORMAT, ASM)
        w1 = _weights(low1, b, low_less, FORMAT, ASM)
        w2 = _weights(top0, c, top_less, FORMAT, ASM)
        w3 = _weights(top1, d, top_less, FORMAT, ASM)
    return w0[0], w0[1], w1[0], w1[1], w2[0], w2[1], w3[0], w3[1]


@triton.jit
def four(x):
    """[L, 4] -> four [L]."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _spread(word, HALF: tl.constexpr, WARPS: tl.constexpr):
    """One half of each lane's word, by warp, g and c of the lane: float32 [warps, 8, 4]."""
    return tl.reshape(_value(word, HALF).to(tl.float32), [WARPS, 8, 4])


@triton.jit
def multiply_accumulate(
    a0, a1, a2, a3, b0, b1, c0, c1, c2, c3, WARPS: tl.constexpr, ASM: tl.constexpr
):
    """The tensor core product 16 x 16 times 16 x 8 of float16 with float32 sums, in each warp.

    Every argument is [32 * warps], an element a lane. With lane = 4 g + c: a0 and a2 are columns
    (2 c, 2 c + 1) and (2 c + 8, 2 c + 9) of row g, a1 and a3 those of row g + 8; b0 and b1 the same
    rows of column g; c0 and c1 are columns 2 c and 2 c + 1 of row g, c2 and c3 of row g + 8.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
            "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
            [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=False,
            pack=1,
        )
    upper = tl.zeros([WARPS, 8, 8], tl.float32)
    lower = tl.zeros([WARPS, 8, 8], tl.float32)
    for half in tl.static_range(2):
        x0 = _spread(b0, half, WARPS)[:, None, :, :]
        x1 = _spread(b1, half, WARPS)[:, None, :, :]
        upper += tl.sum(_spread(a0, half, WARPS)[:, :, None, :] * x0, 3)
        upper += tl.sum(_spread(a2, half, WARPS)[:, :, None, :] * x1, 3)
        lower += tl.sum(_spread(a1, half, WARPS)[:, :, None, :] * x0, 3)
        lower += tl.sum(_spread(a3, half, WARPS)[:, :, None, :] * x1, 3)
    even, odd = tl.split(tl.reshape(upper, [WARPS * 32, 2]))
    third, fourth = tl.split(tl.reshape(lower, [WARPS * 32, 2]))
    return c0 + even, c1 + odd, c2 + third, c3 + fourth

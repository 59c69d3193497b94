"""Dot products of packed integers: one instruction on the GPU, plain arithmetic elsewhere.

``ASM`` is a compile-time switch: Triton's interpreter cannot run inline assembly.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def byte_of(word, index: tl.constexpr):
    """Signed byte ``index`` of int32 words."""
    return (word << (24 - 8 * index)) >> 24


@triton.jit
def half_of(word, index: tl.constexpr):
    """Signed 16-bit half ``index`` of int32 words."""
    return (word << (16 - 16 * index)) >> 16


@triton.jit
def dot4(a, b, c, ASM: tl.constexpr):
    """c + sum of the products of four signed bytes."""
    if ASM:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, b, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    # Not factored into calls: in the interpreter a call takes longer than its body.
    total = c + (a << 24 >> 24) * (b << 24 >> 24) + (a << 16 >> 24) * (b << 16 >> 24)
    return total + (a << 8 >> 24) * (b << 8 >> 24) + (a >> 24) * (b >> 24)


@triton.jit
def pack_halves(low, high, ASM: tl.constexpr):
    """Two int32 that fit 16 bits -> one word."""
    if ASM:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x5410;",
            "=r,r,r",
            [low, high],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return (low & 0xFFFF) | (high << 16)


@triton.jit
def dot2_low(halves, scales, c, ASM: tl.constexpr):
    """c + product of two signed halves with the two signed low bytes."""
    if ASM:
        return tl.inline_asm_elementwise(
            "dp2a.lo.s32.s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [halves, scales, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return c + half_of(halves, 0) * byte_of(scales, 0) + half_of(halves, 1) * byte_of(scales, 1)


@triton.jit
def dot2_high(halves, scales, c, ASM: tl.constexpr):
    """c + product of two signed halves with the two signed high bytes."""
    if ASM:
        return tl.inline_asm_elementwise(
            "dp2a.hi.s32.s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [halves, scales, c],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return c + half_of(halves, 0) * byte_of(scales, 2) + half_of(halves, 1) * byte_of(scales, 3)


@triton.jit
def first_half(word):
    """The float16 in the low half of int32 words, as float32."""
    return (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def second_half(word):
    """The float16 in the high half of int32 words, as float32."""
    return (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def in_two_parts(first, second):
    """Two float32 -> two pairs of bfloat16 that add up to them, up to 2^-16 relative."""
    a, b = first.to(tl.int32, bitcast=True), second.to(tl.int32, bitcast=True)
    upper_a = (a & -0x10000).to(tl.float32, bitcast=True)
    upper_b = (b & -0x10000).to(tl.float32, bitcast=True)
    rest_a = (first - upper_a).to(tl.int32, bitcast=True) + 0x8000
    rest_b = (second - upper_b).to(tl.int32, bitcast=True) + 0x8000
    coarse = ((a >> 16) & 0xFFFF) | (b & -0x10000)
    return coarse, ((rest_a >> 16) & 0xFFFF) | (rest_b & -0x10000)

"""Arithmetic on words of two float16, and the factors of packed weights in such words.

Without ``ASM`` they compute the same in plain arithmetic, for the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.linear.int8_dots import (
    IQ4_XS,
    Q4_0,
    Q5_0,
    Q6_K,
    Q8_0,
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
def four(x):
    """[L, 4] -> four [L]."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth

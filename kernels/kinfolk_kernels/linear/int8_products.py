"""Products of packed weights with int8 rows on tensor cores: exact integer sums.

Tensors have one element for each lane of a warp: lane 4 g + c holds a part of matrix rows 4 g to
4 g + 3 and of x's row g, and gets the sums for x's rows 2 c and 2 c + 1. Without ``ASM`` the
functions compute the same in plain arithmetic, for the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _outer(a, b):
    """The sum over c and n of a[g, c, n] b[h, c, n], [8, 8]; a and b [32, n] hold n numbers of each
    lane 4 g + c."""
    WIDE: tl.constexpr = 4 * a.shape[1]
    rows = tl.reshape(a, [8, WIDE])[:, None, :]
    return tl.sum(rows * tl.reshape(b, [8, WIDE])[None, :, :], 2)


@triton.jit
def _bytes(word):
    """The signed bytes of a word: [32, 4]."""
    return (word[:, None] << (24 - 8 * tl.arange(0, 4)[None, :])) >> 24


@triton.jit
def _bytes_of(first, second):
    """The signed bytes of two words: [32, 8]."""
    words = tl.join(first, second)[:, :, None]
    return tl.reshape(
        (words << (24 - 8 * tl.arange(0, 4)[None, None, :])) >> 24, [first.shape[0], 8]
    )


@triton.jit
def _pair_of(word):
    """The two bfloat16 of a word: [32, 2]."""
    return tl.join(_float_of(word << 16), _float_of(word & -0x10000))


@triton.jit
def _float_of(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _placed(upper, lower):
    """Sums [8, 8] of rows g and of rows g + 8 -> the four sums of each lane."""
    even, odd = tl.split(tl.reshape(upper, [32, 2]))
    third, fourth = tl.split(tl.reshape(lower, [32, 2]))
    return even, odd, third, fourth


@triton.jit
def multiply_32(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3, ASM: tl.constexpr):
    """16 x 32 times 32 x 8 signed bytes, added to int32.

    Four bytes a word. a0 and a2 are eight columns of row g, a1 and a3 of row g + 8; b0 and b1 the
    same rows of column g; c0 and c1 columns 2 c and 2 c + 1 of row g, c2 and c3 of row g + 8.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r",
            [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    x = _bytes_of(b0, b1)
    upper, lower = _outer(_bytes_of(a0, a2), x), _outer(_bytes_of(a1, a3), x)
    d0, d1, d2, d3 = _placed(upper, lower)
    return c0 + d0, c1 + d1, c2 + d2, c3 + d3


@triton.jit
def multiply_16(a0, a1, b0, c0, c1, c2, c3, ASM: tl.constexpr):
    """16 x 16 times 16 x 8 signed bytes, added to int32: the first half of ``multiply_32``."""
    if ASM:
        return tl.inline_asm_elementwise(
            "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
            "{$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
            "=r,=r,=r,=r,r,r,r,r,r,r,r",
            [a0, a1, b0, c0, c1, c2, c3],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    x = _bytes(b0)
    upper, lower = _outer(_bytes(a0), x), _outer(_bytes(a1), x)
    d0, d1, d2, d3 = _placed(upper, lower)
    return c0 + d0, c1 + d1, c2 + d2, c3 + d3


@triton.jit
def multiply_pairs(a0, a1, b0, ASM: tl.constexpr):
    """16 x 8 times 8 x 8 pairs of bfloat16 -> float32, placed as in ``multiply_32``."""
    zero = tl.zeros(a0.shape, tl.float32)
    if ASM:
        return tl.inline_asm_elementwise(
            "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
            "{$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
            "=f,=f,=f,=f,r,r,r,f,f,f,f",
            [a0, a1, b0, zero, zero, zero, zero],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=False,
            pack=1,
        )
    x = _pair_of(b0)
    return _placed(_outer(_pair_of(a0), x), _outer(_pair_of(a1), x))


@triton.jit
def minima(scales, ASM: tl.constexpr):
    """The two high bytes of words, which are below 128, negated, as a pair of bfloat16; exact."""
    if ASM:
        # bfloat16 128 + n has the bits 0x4300 + n; 128 - (128 + n) is -n.
        return tl.inline_asm_elementwise(
            "{ .reg .b32 n, minus, most; prmt.b32 n, $1, 0x43004300, 0x5352; "
            "mov.b32 minus, 0xbf80bf80; mov.b32 most, 0x43004300; "
            "fma.rn.bf16x2 $0, n, minus, most; }",
            "=r,r",
            [scales],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    low = (0.0 - ((scales >> 16) & 255).to(tl.float32)).to(tl.int32, bitcast=True)
    high = (0.0 - ((scales >> 24) & 255).to(tl.float32)).to(tl.int32, bitcast=True)
    return ((low >> 16) & 0xFFFF) | high

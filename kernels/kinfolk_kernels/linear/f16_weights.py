"""Packed weights as pairs of float16 in a word, in the order of ``gemm_f16_kernel``.

Tensors are int32 [quads, 4, 4]: groups of four rows, lanes c of a group, rows. A pair is bytes p
and p + 2 of a word. Without ``ASM`` the functions compute the same in plain arithmetic.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.linear.halves_words import factors, fma_pairs, mul_pairs, sub_pairs
from kinfolk_kernels.linear.int8_dots import (
    IQ4_XS,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    looked_up,
)

SIXTEENTH = tl.constexpr(0x2C002C00)
"""The bits of float16 1 / 16, twice."""

SIGN_BITS = tl.constexpr(-0x7F7F7F80)
"""The sign bits of the four bytes of a word."""


@triton.jit
def pair_factors(scales, supers, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """``factors``; those of high nibbles for ``weights_of``, to which a nibble of Q4_K in bits 4 to
    7 counts 16 times.

    A sixteenth may be too small for all bits of float16, but then it is lost among the weights of
    its block: the block's own scale is a float16 and smaller still.
    """
    supers = tl.broadcast_to(supers, scales.shape)
    a, b, c, d, low_less, top_less = factors(scales, supers, FORMAT, ASM)
    if FORMAT == Q4_K:
        c = mul_pairs(c, tl.full(c.shape, SIXTEENTH, tl.int32), ASM)
        d = c
    return a, b, c, d, low_less, top_less


@triton.jit
def high_codes_of(high, shifts, FORMAT: tl.constexpr):
    """A word of bits above the nibbles -> bits 4 and 5 of the codes of low nibbles, and of high
    nibbles, as bytes. ``shifts`` [1, 4, 1]: twice the number of the group among those of the
    word."""
    if FORMAT == Q6_K:
        turned = high >> (shifts * 2)
        codes = ((turned << 4) & 0x30303030, (turned << 2) & 0x30303030)
    else:
        turned = high >> shifts
        codes = ((turned << 4) & 0x10101010, (turned << 3) & 0x10101010)
    return codes


@triton.jit
def _thousands(codes, bits, ODD: tl.constexpr, ASM: tl.constexpr):
    """Two unsigned bytes b of a word -> the pair 1024 + b; ``bits`` are those of the pair 1024."""
    if ASM:
        bits = tl.broadcast_to(bits, codes.shape)
        if ODD:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, $2, 0x5351;",
                "=r,r,r",
                [codes, bits],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            )
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x5250;",
            "=r,r,r",
            [codes, bits],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return ((codes >> 8 if ODD else codes) & 0x00FF00FF) | bits


@triton.jit
def _scaled(thousands, LESS: tl.constexpr, factor, less, LEAST: tl.constexpr, ASM: tl.constexpr):
    """(pair - (1024 + LESS)) * factor, with LEAST + less."""
    offset = tl.full(thousands.shape, (0x6400 + LESS) * 0x10001, tl.int32)
    codes = sub_pairs(thousands, offset, ASM)
    if LEAST:
        return fma_pairs(codes, factor, less, ASM)
    return mul_pairs(codes, factor, ASM)


@triton.jit
def weights_of(
    q, top, high, made, bits, LATER: tl.constexpr, FORMAT: tl.constexpr, ASM: tl.constexpr
):
    """A lane's word -> four words of weights: two of its low nibbles, two of its high nibbles.
    ``LATER``: whether the word is in the second half of a group.

    q: the word, of 8-bit codes the first; top: of 8-bit codes the word 32 columns on; high: what
    ``high_codes_of`` returns; made: what ``pair_factors`` returns.
    """
    LEAST: tl.constexpr = FORMAT == Q4_K or FORMAT == Q5_K
    a, b = made[1 if LATER else 0], made[3 if LATER else 2]
    if FORMAT == Q4_K:
        turned = q >> 8
        return (
            _scaled((q & 0x000F000F) | bits, 0, a, made[4], LEAST, ASM),
            _scaled((turned & 0x000F000F) | bits, 0, a, made[4], LEAST, ASM),
            _scaled((q & 0x00F000F0) | bits, 0, b, made[5], LEAST, ASM),
            _scaled((turned & 0x00F000F0) | bits, 0, b, made[5], LEAST, ASM),
        )
    if FORMAT == Q8_0:
        near, far = q ^ SIGN_BITS, top ^ SIGN_BITS
    else:
        near, far = q & 0x0F0F0F0F, (q >> 4) & 0x0F0F0F0F
        if FORMAT == IQ4_XS:
            near, far = looked_up(near, ASM) ^ SIGN_BITS, looked_up(far, ASM) ^ SIGN_BITS
        elif FORMAT != Q4_0:
            near, far = near | high[0], far | high[1]
    LESS: tl.constexpr = (
        32
        if FORMAT == Q6_K
        else 16
        if FORMAT == Q5_0
        else 8
        if FORMAT == Q4_0
        else 0
        if LEAST
        else 128
    )
    return (
        _scaled(_thousands(near, bits, 0, ASM), LESS, a, made[4], LEAST, ASM),
        _scaled(_thousands(near, bits, 1, ASM), LESS, a, made[4], LEAST, ASM),
        _scaled(_thousands(far, bits, 0, ASM), LESS, b, made[5], LEAST, ASM),
        _scaled(_thousands(far, bits, 1, ASM), LESS, b, made[5], LEAST, ASM),
    )


@triton.jit
def halves_of(word, ASM: tl.constexpr):
    """A word -> its two float16 in a last dimension."""
    if ASM:
        low, high = tl.inline_asm_elementwise(
            "mov.b32 {$0, $1}, $2;",
            "=h,=h,r",
            [word],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        low = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
        high = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(low, high)

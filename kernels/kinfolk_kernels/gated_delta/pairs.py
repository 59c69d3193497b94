"""Products of pairs of float16: 22 bits, as of three passes of tf32, at twice their speed.

A matrix is split into a high and a low part. Rows of any size are scaled by powers of two first:
their largest numbers to 2^8, so that the low part of every number is exact to 2^-33 of the largest.

Without ``PAIRED`` there are high parts only: 11 bits, a third of the products, half of the bytes.
Low parts are the high ones then, which nothing reads.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_of(most):
    """(s, 1 / s), powers of two with most * s in [2^8, 2^9). Zero has a finite scale too."""
    exponent = (most.to(tl.int32, bitcast=True) >> 23) & 255
    # Within these bounds, s and 1 / s are normal numbers.
    exponent = tl.minimum(tl.maximum(exponent, 40), 253)
    scale = ((262 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, ((exponent - 8) << 23).to(tl.float32, bitcast=True)


@triton.jit
def halves(x, PAIRED: tl.constexpr):
    """(high, low) float16 of numbers that need no scale, or have one."""
    high = x.to(tl.float16)
    low = high
    if PAIRED:
        low = (x - high.to(tl.float32)).to(tl.float16)
    return high, low


@triton.jit
def pair_of_rows(x, PAIRED: tl.constexpr):
    """(high, low, unscale [rows]) of a matrix whose rows are scaled each by its own factor."""
    scale, unscale = scale_of(tl.max(tl.abs(x), 1))
    high, low = halves(x * scale[:, None], PAIRED)
    return high, low, unscale


@triton.jit
def add_product(total, high_a, low_a, high_b, low_b, PAIRED: tl.constexpr):
    """total + a b, without the product of the low parts."""
    if PAIRED:
        total = tl.dot(low_a, high_b, total)
        total = tl.dot(high_a, low_b, total)
    return tl.dot(high_a, high_b, total)

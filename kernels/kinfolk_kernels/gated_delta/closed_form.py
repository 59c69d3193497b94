"""The closed form of a block of rows of the gated delta rule, for kernels.

The formulas are those of ``torch_backend.py``. Keys are processed in slices of 32, each loaded at
its use: operands of a product over 128 keys do not fit in registers. A tile of the state is a tuple
of its slices.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLICE_KEYS = tl.constexpr(32)
"""Keys in a slice."""


PRECISION = tl.constexpr("tf32x3")
"""Three tf32 products: one would lose three digits of a state that accumulates over the text."""


@triton.jit
def product(a, b):
    return tl.dot(a, b, out_dtype=tl.float32, input_precision=PRECISION)


@triton.jit
def load_slice(base, rows, stride, inside, index):
    """[rows, KEYS]: slice ``index`` of ``rows`` of a matrix, 0 where not ``inside``."""
    at = base + rows.to(tl.int64)[:, None] * stride + tl.arange(0, SLICE_KEYS)[None, :]
    return tl.load(at + index * SLICE_KEYS, mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def load_state(base, r, SLICES: tl.constexpr):
    """Rows ``r`` of a state [values, keys] -> a tuple of [rows, KEYS]."""
    at = base + r[:, None] * (SLICE_KEYS * SLICES) + tl.arange(0, SLICE_KEYS)[None, :]
    found = ()
    for i in tl.static_range(SLICES):
        found = found + (tl.load(at + i * SLICE_KEYS),)  # type: ignore[assignment]
    return found


@triton.jit
def decays(later, earlier, seen):
    """exp(later - earlier) where ``seen``, else 0; both are float64 sums of decays that broadcast.

    The sums are large and their differences small. So each sum is split into two float32, whose
    high parts have exact differences if the sums are near. Differences that are not ``seen`` may be
    positive, so they are masked before the exponential.
    """
    high_l = later.to(tl.float32)
    low_l = (later - high_l.to(tl.float64)).to(tl.float32)
    high_e = earlier.to(tl.float32)
    low_e = (earlier - high_e.to(tl.float64)).to(tl.float32)
    gap = (high_l - high_e) + (low_l - low_e)
    return tl.exp(tl.where(seen, gap, float("-inf")))


@triton.jit
def inverse(a, T: tl.constexpr, LEVELS: tl.constexpr):
    """(I + a)^-1 of a strictly triangular [T, T], lower or upper, T = 2^LEVELS.

    Computed by doubling: if X and Y are the inverses of two neighbouring diagonal blocks, and B is
    the block of ``a`` between them, then that block of the inverse is -X B Y. ``level`` is the
    highest bit in which rows and columns of B differ.
    """
    row = tl.arange(0, T)[:, None]
    column = tl.arange(0, T)[None, :]
    found = tl.where(row == column, 1.0, 0.0) - tl.where((row ^ column) == 1, a, 0.0)
    for level in tl.static_range(1, LEVELS):
        between = tl.where(((row ^ column) >> level) == 1, a, 0.0)
        found -= product(product(found, between), found)
    return found

"""Gumbel noise in kernels: the same words as philox.py, in 32-bit arithmetic.

Twice: in float64, as the reference has it, for the few tokens that may win, and in float32 with an
error below ``ERROR`` to find those.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.sample.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

_M0, _M1 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
_K0, _K1 = tl.constexpr(KEY_STEPS[0]), tl.constexpr(KEY_STEPS[1])
_ROUNDS = tl.constexpr(ROUNDS)
_UNIT_32, _UNIT_53 = tl.constexpr(2.0**-32), tl.constexpr(2.0**-53)

ERROR = tl.constexpr(2.0**-11)
"""Bound of the error of a key in float32: of its noise, 3e-5 (with 2^-22 for logarithms near 1,
what a GPU's fast ones have), and of its depth of at most 41, 3e-6."""

_SMALL = tl.constexpr(2.0**-7)
"""Distance of u to 1 below which -log(u) is a series: its next term is below 2^-22 of the sum."""


@triton.jit
def noise_words(seed, position, pair):
    """The four words uint32 of each pair of tokens 2i and 2i + 1; see philox.py."""
    c0, c1 = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c2 = pair.to(tl.uint32)
    c3 = c2 & 0
    for _ in tl.static_range(_ROUNDS):
        high0, high2 = tl.umulhi(c0, _M0), tl.umulhi(c2, _M1)
        low0 = tl.mul(c0, _M0, sanitize_overflow=False)
        low2 = tl.mul(c2, _M1, sanitize_overflow=False)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0 = tl.add(k0, _K0, sanitize_overflow=False)
        k1 = tl.add(k1, _K1, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def noise(high, low):
    """Gumbel noise float64 of two words of a token."""
    bits = (high.to(tl.int64) << 21) | (low >> 11).to(tl.int64)
    u = tl.maximum(bits.to(tl.float64), 0.5) * _UNIT_53
    return -tl.log(-tl.log(u))


@triton.jit
def rough_noise(high, low):
    """The same in float32. A number near 1 is taken by its distance to 1, which is exact in bits;
    one near 0 keeps its low word."""
    rest = low >> 11
    u = high.to(tl.float32) * _UNIT_32 + tl.maximum(rest.to(tl.float32), 0.5) * _UNIT_53
    apart = (high ^ 0xFFFFFFFF).to(tl.float32) * _UNIT_32
    apart += (2097152 - rest.to(tl.int32)).to(tl.float32) * _UNIT_53
    series = apart * (1.0 + apart * (0.5 + apart * (1.0 / 3.0)))
    return -tl.log(tl.where(apart < _SMALL, series, -tl.log(u)))

"""Activation functions for kernels, in float32 and without overflow."""

from __future__ import annotations

import triton
import triton.language as tl

SILU, GELU = tl.constexpr(0), tl.constexpr(1)

ACTIVATION_BOUND = tl.constexpr(0.3)
"""More than the size of any activation of a negative number: 0.279 of silu, 0.171 of gelu."""


@triton.jit
def sigmoid(x):
    falling = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, falling) / (1.0 + falling)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def softplus(x):
    """log(1 + exp x); the quotient corrects the rounding of 1 + z for small z."""
    z = tl.exp(-tl.abs(x))
    u = 1.0 + z
    small = u == 1.0
    return tl.maximum(x, 0.0) + tl.where(small, z, tl.log(u) * z / tl.where(small, 1.0, u - 1.0))


@triton.jit
def tanh(x):
    """tanh x; near zero its error is about 2^-24 absolute, not relative."""
    z = tl.exp(-2.0 * tl.abs(x))
    bent = (1.0 - z) / (1.0 + z)
    return tl.where(x >= 0, bent, -bent)


@triton.jit
def gelu_tanh(x):
    """x (1 + tanh u) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def activation(x, ACTIVATION: tl.constexpr):
    """The activation with the number ACTIVATION."""
    if ACTIVATION == SILU:
        return silu(x)
    return gelu_tanh(x)

"""Functions of the kernels that draw: the order of candidates, their mass, and their buckets.

Candidates are ordered by scaled logit, largest first, and the lowest id first of equals. Mass is
counted in integers, so that a sum does not depend on the order of additions: a weight
exp(x - largest) is scaled to at most 2^44 (less if the vocabulary is larger than 2^18, so that all
of it stays below 2^62). Truncation to integers loses less than 2^-44 of the largest weight for each
token. Buckets divide the depth of a candidate, its distance below the largest logit; candidates
beyond the last bucket have no mass.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.sample.philox import KEY_STEPS, LOW, MULTIPLIERS, ROUNDS

BUCKETS = tl.constexpr(8192)
DEEPEST = tl.constexpr(32)
"""Depth at which the last bucket ends: exp(-32) is below 2^-44."""

_LAST = tl.constexpr(2**31 - 1)
_M0, _M1 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
_K0, _K1 = tl.constexpr(KEY_STEPS[0]), tl.constexpr(KEY_STEPS[1])
_LOW, _ROUNDS = tl.constexpr(LOW), tl.constexpr(ROUNDS)


@triton.jit
def scaled(x, temperature):
    """x / temperature, correctly rounded, so that equal logits stay equal; -0 becomes 0."""
    y = tl.div_rn(x, temperature)
    return tl.where(y == 0.0, 0.0, y)


@triton.jit
def bucket_of(depth):
    """The bucket of a depth >= 0; other values get some valid bucket."""
    place = tl.minimum(depth * (BUCKETS // DEEPEST), BUCKETS - 1.0)
    place = tl.where(place == place, place, 0.0)
    return tl.maximum(place, 0.0).to(tl.int32)


@triton.jit
def mass_of(depth, UNIT: tl.constexpr):
    """The weight at a depth, int64; UNIT is the weight at depth 0."""
    weight = tl.exp(-depth)
    return (tl.where(weight == weight, weight, 0.0) * UNIT).to(tl.int64)


@triton.jit
def code_of(y, token, TOKEN_BITS: tl.constexpr):
    """An integer code that orders candidates: smaller codes come first."""
    bits = y.to(tl.int32, bitcast=True)
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ((-rising.to(tl.int64) + _LAST) << TOKEN_BITS) | token.to(tl.int64)


@triton.jit
def logit_of(code, TOKEN_BITS: tl.constexpr):
    """The scaled logit of a code."""
    rising = (-(code >> TOKEN_BITS) + _LAST).to(tl.int32)
    bits = rising ^ ((rising >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def uniform(seed, position):
    """The random number in [0, 1) of an int64 seed and position; see philox.py."""
    c0, c1 = position & _LOW, (position >> 32) & _LOW
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    c2, c3 = c0 * 0, c0 * 0
    for _ in tl.static_range(_ROUNDS):
        first, second = c0 * _M0, c2 * _M1
        c0 = ((second >> 32) & _LOW) ^ c1 ^ k0
        c1 = second & _LOW
        c2 = ((first >> 32) & _LOW) ^ c3 ^ k1
        c3 = first & _LOW
        k0, k1 = (k0 + _K0) & _LOW, (k1 + _K1) & _LOW
    return ((c0 << 21) | (c1 >> 11)).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def first_with(up_to, target):
    """The first bucket whose cumulative mass reaches a target."""
    return tl.minimum(tl.sum((up_to < target).to(tl.int32), 0), BUCKETS - 1)


@triton.jit
def mass_before(mass, bucket):
    return tl.sum(tl.where(tl.arange(0, BUCKETS) < bucket, mass, 0), 0)


@triton.jit
def share(total, top_p):
    """The least mass that top-p keeps of a total; never 0."""
    wanted = total.to(tl.float64) * top_p.to(tl.float64)
    whole = wanted.to(tl.int64)
    whole = whole + (whole.to(tl.float64) < wanted).to(tl.int64)
    return tl.minimum(tl.maximum(whole, 1), tl.maximum(total, 1))


@triton.jit
def target_of(total, number):
    """The cumulative mass that the drawn candidate reaches."""
    below = (total.to(tl.float64) * number).to(tl.int64)
    return tl.maximum(tl.minimum(below + 1, total), 1)


@triton.jit
def marks(mass, count_ptr, top_k, top_p, min_p, number):
    """The decisive buckets, as six numbers: that of top-k, that of min-p, the first and last of
    top-p, and the first and last of the draw; -1 = none. mass [BUCKETS]."""
    up_to = tl.cumsum(mass, 0)
    total = tl.sum(mass, 0)
    least, most = total, total
    k_at, m_at, p_from, p_to = -1, -1, -1, -1
    if top_k > 0:
        count = tl.load(count_ptr + tl.arange(0, BUCKETS))
        k_at = first_with(tl.cumsum(count, 0).to(tl.int64), top_k)
        least, most = mass_before(mass, k_at), mass_before(mass, k_at + 1)
    if top_p < 1.0:
        p_from = first_with(up_to, share(least, top_p))
        p_to = first_with(up_to, share(most, top_p))
        least, most = mass_before(mass, p_from), mass_before(mass, p_to + 1)
    if min_p > 0.0:
        m_at = bucket_of(-tl.log(min_p))
        least = tl.minimum(least, mass_before(mass, m_at))
        most = tl.minimum(most, mass_before(mass, m_at + 1))
    d_from = first_with(up_to, target_of(least, number))
    d_to = first_with(up_to, target_of(most, number))
    return k_at, m_at, p_from, p_to, d_from, d_to

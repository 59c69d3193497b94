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

BUCKETS = tl.constexpr(8192)
DEEPEST = tl.constexpr(32)
"""Depth at which the last bucket ends: exp(-32) is below 2^-44."""

_LAST = tl.constexpr(2**31 - 1)

_HOPELESS = tl.constexpr(41.0)
"""Depth beyond which no noise helps: noise is between -3.63 and 36.74."""


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
def deepest_of(min_p):
    """Depth of the last token that min-p leaves and that may be drawn."""
    return tl.minimum(-tl.log(tl.maximum(min_p, 1e-30)), _HOPELESS)


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
def marks(mass_ptr, count_ptr, top_k, top_p):
    """The decisive buckets, in which top-k or top-p end, as three numbers: that of top-k, and the
    first and last of top-p; -1 = none. And the first bucket of which they may remove tokens."""
    bucket = tl.arange(0, BUCKETS)
    mass = tl.load(mass_ptr + bucket)
    least = tl.sum(mass, 0)
    most = least
    k_at, p_from, p_to, whole = -1, -1, -1, BUCKETS
    if top_k > 0:
        count = tl.load(count_ptr + bucket)
        k_at = first_with(tl.cumsum(count, 0).to(tl.int64), top_k)
        least, most = mass_before(mass, k_at), mass_before(mass, k_at + 1)
        whole = k_at
    if top_p < 1.0:
        up_to = tl.cumsum(mass, 0)
        p_from = first_with(up_to, share(least, top_p))
        p_to = first_with(up_to, share(most, top_p))
        whole = tl.minimum(whole, p_from)
    return k_at, p_from, p_to, whole

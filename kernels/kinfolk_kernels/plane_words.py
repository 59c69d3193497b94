"""Loads of a lane's words of packed matrices, and of the int8 rows they are multiplied with.

A load costs one cycle for each line of 128 bytes that its lanes touch. So neighbouring lanes read
neighbouring words; ``planes`` and ``int8_rows`` describe the layouts.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.linear.int8_dots import Q4_0, Q5_0, Q5_K, Q6_K, Q8_0, low_codes, top_codes

ANY_CACHE = tl.constexpr("")
"""No cache modifier. Triton 3.6 does not accept a plain string as a default."""


@triton.jit
def load(pointers, mask, MASKED: tl.constexpr, CACHE: tl.constexpr = ANY_CACHE):
    """Load ``pointers``; with MASKED, zero where ``mask`` is false. CACHE: a cache modifier."""
    if MASKED:
        return tl.load(pointers, mask=mask, other=0, cache_modifier=CACHE)
    return tl.load(pointers, cache_modifier=CACHE)


@triton.jit
def run_of(unit, UNITS: tl.constexpr, RUN: tl.constexpr):
    """The start of the first of a unit's four runs of RUN words, and the step between runs."""
    step = 2 * RUN
    if UNITS % 2 == 1:
        step = tl.where(unit == UNITS - 1, RUN, 2 * RUN)
    return (unit >> 1) * (8 * RUN) + (unit & 1) * RUN, step


@triton.jit
def high_run_of(group, K: tl.constexpr, FORMAT: tl.constexpr):
    """``run_of`` for the eight words that hold a group's bits above the nibbles."""
    if FORMAT == Q6_K:
        return run_of(group >> 1, K // 128, 2)
    return (group >> 2) * 8, 2


@triton.jit
def place_of(word, at, step, RUN: tl.constexpr):
    """The place of a word of a unit whose runs begin at ``at``, ``step`` apart."""
    return at + word // RUN * step + word % RUN


@triton.jit
def matrix_words(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    quad,
    group,
    t,
    there,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    MASKED: tl.constexpr,
    CACHE: tl.constexpr = ANY_CACHE,
):
    """Word ``t`` of each of the four runs of a group of 64 weights, for the four rows of ``quad``:
    words, their high bits, scales and supers, [lanes, 4] each. Pointers are those of one matrix, or
    of a matrix for each lane."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    r = tl.arange(0, 4)[None, :]
    at, step = run_of(group, K // 64, 4 if EIGHT else 2)
    base = q_ptr + quad * (WORDS * 4) + (at + t) * 4 + r
    q = (load(base, there, MASKED, CACHE),)
    for i in tl.static_range(1, 4):
        q = q + (load(base + i * step * 4, there, MASKED, CACHE),)
    high = q
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        at, step = high_run_of(group, K, FORMAT)
        base = high_ptr + quad * (HIGHS * 4) + (at + t) * 4 + r
        high = (load(base, there, MASKED, CACHE),)
        for i in tl.static_range(1, 4):
            high = high + (load(base + i * step * 4, there, MASKED, CACHE),)
    at = group // (1 if SMALL else 4)
    supers = load(supers_ptr + quad * (SUPERS * 4) + at * 4 + r, there, MASKED, CACHE)
    scales = supers
    if not SMALL:
        scales = load(scales_ptr + quad * (K // 64 * 4) + group * 4 + r, there, MASKED, CACHE)
    return q, high, scales, supers


@triton.jit
def codes_of(q, high, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """The codes of four words as bytes: of low nibbles and of high nibbles; 8-bit codes as they
    are, twice."""
    if FORMAT == Q8_0:
        return q, q
    codes = (low_codes(q[0], high[0], group, FORMAT, ASM),)
    tops = (top_codes(q[0], high[0], group, FORMAT, ASM),)
    for i in tl.static_range(1, 4):
        codes = codes + (low_codes(q[i], high[i], group, FORMAT, ASM),)
        tops = tops + (top_codes(q[i], high[i], group, FORMAT, ASM),)
    return codes, tops


@triton.jit
def row_words(x_ptr, group, t, there, FORMAT: tl.constexpr, MASKED: tl.constexpr):
    """The words of an int8 row that ``matrix_words`` are multiplied with: for low and for high
    nibbles, [lanes, 1] each."""
    at = x_ptr + 16 * group + 4 * t + tl.arange(0, 4)[None, :]
    a, b, c, d = columns(load(at, there, MASKED))
    if FORMAT == Q8_0:
        return (a, b, c, d), (a, b, c, d)
    e, f, g, h = columns(load(at + 8, there, MASKED))
    return (a, e, b, f), (c, g, d, h)


@triton.jit
def columns(x):
    """[lanes, 4] -> four [lanes, 1]."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a[:, None], b[:, None], c[:, None], d[:, None]

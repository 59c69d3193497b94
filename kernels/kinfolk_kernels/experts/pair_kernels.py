"""Experts of few rows, each row for itself: int8 dot products with the matrices of its experts.

A pair is a row and one of its experts. A lane's 16-byte load is one word of four rows of a matrix.
Nothing depends on who else is in the step: neither the order of a sum nor what is rounded.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.curves import curve
from kinfolk_kernels.linear.int8_dots import (
    Q4_0,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    low_codes,
    scaled_dots,
    top_codes,
)
from kinfolk_kernels.row_outputs import store_rows


@triton.jit
def _load(pointers, mask, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=mask, other=0)
    return tl.load(pointers)


@triton.jit
def load_words(
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
):
    """What a lane reads of a group of 64 weights of the rows of ``quad``: four words, their high
    bits, scales and supers, [NR, lanes, 4] each. Pointers are of a matrix, or of one a lane."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    STEP: tl.constexpr = 4 if EIGHT else 2
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    r = tl.arange(0, 4)[None, None, :]
    word = (16 if EIGHT else 8) * group + t
    base = q_ptr + quad * (WORDS * 4) + r
    q = (_load(base + word * 4, there, MASKED),)
    for i in tl.static_range(1, 4):
        q = q + (_load(base + (word + STEP * i) * 4, there, MASKED),)
    at = group // (1 if SMALL else 4)
    supers = _load(supers_ptr + quad * (SUPERS * 4) + at * 4 + r, there, MASKED)
    scales = supers
    if not SMALL:
        scales = _load(scales_ptr + quad * (K // 64 * 4) + group * 4 + r, there, MASKED)
    high = q
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        base = high_ptr + quad * (HIGHS * 4) + r
        at = group // (2 if FORMAT == Q6_K else 4) * 8 + t
        high = (_load(base + at * 4, there, MASKED),)
        for i in tl.static_range(1, 4):
            high = high + (_load(base + (at + STEP * i) * 4, there, MASKED),)
    return q, high, scales, supers


@triton.jit
def load_row(x_ptr, d_ptr, group, t, there, FORMAT: tl.constexpr, MASKED: tl.constexpr):
    """The words of an int8 row that meet a lane's, and their scale; pointers of a row, or of one
    a lane."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    STEP: tl.constexpr = 4 if EIGHT else 2
    at = x_ptr + 16 * group + t
    x = (_load(at, there, MASKED),)
    for i in tl.static_range(1, 4):
        x = x + (_load(at + STEP * i, there, MASKED),)
    top = x
    if not EIGHT:
        top = (_load(at + 8, there, MASKED),)
        for i in tl.static_range(1, 4):
            top = top + (_load(at + 8 + STEP * i, there, MASKED),)
    return x, top, _load(d_ptr + group, there, MASKED)


@triton.jit
def dots(q, high, scales, supers, x, top, group, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """What ``load_words`` read against what ``load_row`` read, before the row's scale."""
    codes, tops = q, q
    if FORMAT != Q8_0:
        codes = (low_codes(q[0], high[0], group, FORMAT, ASM),)
        tops = (top_codes(q[0], high[0], group, FORMAT, ASM),)
        for i in tl.static_range(1, 4):
            codes = codes + (low_codes(q[i], high[i], group, FORMAT, ASM),)
            tops = tops + (top_codes(q[i], high[i], group, FORMAT, ASM),)
    return scaled_dots(codes, tops, x, top, scales, supers, FORMAT, ASM)


@triton.jit
def gate_up_kernel(
    ids_ptr, bay_ptr, x_ptr, d_ptr,
    gate_q, gate_high, gate_scales, gate_supers,
    up_q, up_high, up_scales, up_supers,
    q_step, high_step, scales_step, supers_step,
    words_ptr, scale_ptr, sums_ptr,
    K: tl.constexpr, F: tl.constexpr, TOP_K: tl.constexpr, FORMAT: tl.constexpr,
    CURVE: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (F / 64, pairs): curve(gate x) * up x of 64 channels, as int8 with one scale."""
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    pair = tl.program_id(1).to(tl.int64)
    bay = tl.load(bay_ptr + tl.load(ids_ptr + pair)).to(tl.int64)
    quad = (tl.program_id(0) * 16 + tl.arange(0, 16)).to(tl.int64)[:, None, None]
    lane = tl.arange(0, LANES)[None, :, None]
    t = lane % SHARE
    q_at, high_at = bay * q_step, bay * high_step
    scales_at, supers_at = bay * scales_step, bay * supers_step
    gate = tl.zeros([16, LANES, 4], tl.float32)
    up = tl.zeros([16, LANES, 4], tl.float32)
    x_row = x_ptr + pair // TOP_K * (K // 4)
    d_row = d_ptr + pair // TOP_K * (K // 64)
    for start in tl.range(0, K // 64, LANES // SHARE):
        group = start + lane // SHARE
        there = group < K // 64
        gate_words = load_words(
            gate_q + q_at, gate_high + high_at, gate_scales + scales_at, gate_supers + supers_at,
            quad, group, t, there, K, FORMAT, MASKED,
        )  # fmt: skip
        up_words = load_words(
            up_q + q_at, up_high + high_at, up_scales + scales_at, up_supers + supers_at,
            quad, group, t, there, K, FORMAT, MASKED,
        )  # fmt: skip
        x, top, d = load_row(x_row, d_row, group, t, there, FORMAT, MASKED)
        q, high, scales, supers = gate_words
        gate += dots(q, high, scales, supers, x, top, group, FORMAT, ASM) * d
        q, high, scales, supers = up_words
        up += dots(q, high, scales, supers, x, top, group, FORMAT, ASM) * d
    inner = curve(tl.sum(gate, 1), CURVE) * tl.sum(up, 1)
    store_rows(
        tl.reshape(inner, [1, 64]),
        pair + tl.arange(0, 1),
        tl.program_id(0) * 64,
        tl.full([1, 64], True, tl.int1),
        F,
        words_ptr,
        words_ptr,
        scale_ptr,
        sums_ptr,
        1,
        64,
        False,
        True,
    )


@triton.jit
def down_kernel(
    ids_ptr, weights_ptr, bay_ptr, x_ptr, d_ptr,
    down_q, down_high, down_scales, down_supers,
    q_step, high_step, scales_step, supers_step,
    y_ptr,
    F: tl.constexpr, W: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr,
    FORMAT: tl.constexpr, NR: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Grid (W / 4 / NR, rows): y float32 [rows, W], the weighted sum over a row's experts.

    The experts lie side by side in the lanes: all their words are on their way at once, and one sum
    of fixed shape adds up columns and experts.
    """
    SHARE: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    row = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, PLACES * LANES)
    place, inside = (lane // LANES)[None, :, None], (lane % LANES)[None, :, None]
    chosen = place < TOP_K
    pair = row * TOP_K + tl.minimum(place, TOP_K - 1)
    bay = tl.load(bay_ptr + tl.load(ids_ptr + pair)).to(tl.int64)
    weight = tl.load(weights_ptr + pair)
    quad = (tl.program_id(0) * NR + tl.arange(0, NR)).to(tl.int64)[:, None, None]
    t = inside % SHARE
    acc = tl.zeros([NR, PLACES * LANES, 4], tl.float32)
    for start in tl.range(0, F // 64, LANES // SHARE):
        group = start + inside // SHARE
        there = chosen & (group < F // 64)
        q, high, scales, supers = load_words(
            down_q + bay * q_step, down_high + bay * high_step,
            down_scales + bay * scales_step, down_supers + bay * supers_step,
            quad, group, t, there, F, FORMAT, MASKED,
        )  # fmt: skip
        x_row, d_row = x_ptr + pair * (F // 4), d_ptr + pair * (F // 64)
        x, top, d = load_row(x_row, d_row, group, t, there, FORMAT, MASKED)
        acc += dots(q, high, scales, supers, x, top, group, FORMAT, ASM) * (d * weight)
    y = tl.sum(acc, 1)
    n = (tl.program_id(0) * NR + tl.arange(0, NR))[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(y_ptr + row * W + n, y)

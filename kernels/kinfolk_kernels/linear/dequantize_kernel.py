"""The kernels that dequantise rows of packed matrices."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.int8_dots import (
    IQ4_XS,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    low_codes,
    top_codes,
)
from kinfolk_kernels.linear.segments import FREE, NONE
from kinfolk_kernels.packed_integers import byte_of, first_half, second_half
from kinfolk_kernels.plane_words import high_run_of, place_of, run_of


@triton.jit
def _numbers(codes, byte, OFFSET: tl.constexpr, SIGNED: tl.constexpr):
    """The four bytes of words [A, W] as float32 [A, W, 4]."""
    wide = codes[:, :, None]
    if SIGNED:
        return ((wide << (24 - 8 * byte)) >> 24).to(tl.float32)
    return (((wide >> (8 * byte)) & 255) - OFFSET).to(tl.float32)


@triton.jit
def _scaled(numbers, factor, less, MINIMUM: tl.constexpr):
    if MINIMUM:
        return numbers * factor[:, :, None] - less[:, :, None]
    return numbers * factor[:, :, None]


@triton.jit
def _places(quad, word, K: tl.constexpr, FORMAT: tl.constexpr):
    """Where words of groups of four rows are: in q, in high, in scales and in supers."""
    EIGHT: tl.constexpr = FORMAT == Q8_0
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    WORDS: tl.constexpr = K // 4 if EIGHT else K // 8
    PER_GROUP: tl.constexpr = 16 if EIGHT else 8
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    RUN: tl.constexpr = 4 if EIGHT else 2
    group, w = word // PER_GROUP, word % PER_GROUP
    at, step = run_of(group, K // 64, RUN)
    q = (quad * WORDS + place_of(w, at, step, RUN)) * 4
    at, step = high_run_of(group, K, FORMAT)
    high = (quad * HIGHS + place_of(w, at, step, 2)) * 4
    scales = (quad * (K // 64) + group) * 4
    return q, high, scales, (quad * SUPERS + group // (1 if SMALL else 4)) * 4


@triton.jit
def _put(
    q, high, scales, supers, word, target, mask, scale,
    FORMAT: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Store the weights of words [A, W] of rows that begin at ``target`` [A, 1], times ``scale``.
    ``word`` [1, W]: the numbers of the words in a row."""
    PER_GROUP: tl.constexpr = 16 if FORMAT == Q8_0 else 8
    group, w = word // PER_GROUP, word % PER_GROUP
    d, second = first_half(supers), second_half(supers)
    byte = tl.arange(0, 4)[None, None, :]
    inside = mask[:, :, None]
    kind = target.dtype.element_ty
    if FORMAT == Q8_0:
        values = _scaled(_numbers(q, byte, 0, True), tl.where(w < 8, d, second), d, False)
        at = (target + word * 4)[:, :, None] + byte
        tl.store(at, (values * scale).to(kind), mask=inside)
    else:
        OFFSET: tl.constexpr = (
            32 if FORMAT == Q6_K else 16 if FORMAT == Q5_0 else 8 if FORMAT == Q4_0 else 0
        )
        MINIMUM: tl.constexpr = FORMAT == Q4_K or FORMAT == Q5_K
        low_scale, top_scale, low_less, top_less = d, second, d, d
        if MINIMUM:
            low_scale = d * (scales & 255).to(tl.float32)
            top_scale = d * ((scales >> 8) & 255).to(tl.float32)
            low_less = second * ((scales >> 16) & 255).to(tl.float32)
            top_less = second * ((scales >> 24) & 255).to(tl.float32)
        elif FORMAT == Q6_K:
            own = scales >> (16 * (w // 4))
            low_scale = d * byte_of(own, 0).to(tl.float32)
            top_scale = d * byte_of(own, 1).to(tl.float32)
        elif FORMAT == IQ4_XS:
            low_scale = d * byte_of(scales, 0).to(tl.float32)
            top_scale = d * byte_of(scales, 1).to(tl.float32)
        low = low_codes(q, high, group, FORMAT, ASM)
        top = top_codes(q, high, group, FORMAT, ASM)
        low = _numbers(low, byte, OFFSET, FORMAT == IQ4_XS)
        top = _numbers(top, byte, OFFSET, FORMAT == IQ4_XS)
        at = (target + group * 64 + w * 4)[:, :, None] + byte
        low = _scaled(low, low_scale, low_less, MINIMUM) * scale
        top = _scaled(top, top_scale, top_less, MINIMUM) * scale
        tl.store(at, low.to(kind), mask=inside)
        tl.store(at + 32, top.to(kind), mask=inside)


@triton.jit
def _rows_of(words):
    """Words [A, W, 4] of groups of four rows -> those of each row [A, W]."""
    A: tl.constexpr = words.shape[0]
    W: tl.constexpr = words.shape[1]
    even, odd = tl.split(tl.reshape(words, (A, W, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit(do_not_specialize=FREE)
def dequantize_kernel(
    q0, high0, scales0, supers0, y0, n0, end0,
    q1, high1, scales1, supers1, y1, n1, end1,
    q2, high2, scales2, supers2, y2, n2, end2,
    q3, high3, scales3, supers3, y3, n3, end3,
    F0: tl.constexpr, F1: tl.constexpr, F2: tl.constexpr, F3: tl.constexpr,
    K: tl.constexpr, GROUPS: tl.constexpr, W: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (programs, words / W): a program dequantises GROUPS groups of four rows of one of up to
    four matrices."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    p = tl.program_id(0)
    if p < end0:
        _put_groups(p, q0, high0, scales0, supers0, y0, n0, K, F0, GROUPS, W, ASM)
    elif p < end1:
        if F1 != NONE:
            _put_groups(p - end0, q1, high1, scales1, supers1, y1, n1, K, F1, GROUPS, W, ASM)
    elif p < end2:
        if F2 != NONE:
            _put_groups(p - end1, q2, high2, scales2, supers2, y2, n2, K, F2, GROUPS, W, ASM)
    else:
        if F3 != NONE:
            _put_groups(p - end2, q3, high3, scales3, supers3, y3, n3, K, F3, GROUPS, W, ASM)


@triton.jit
def _put_groups(
    program, q_ptr, high_ptr, scales_ptr, supers_ptr, out_ptr, rows,
    K: tl.constexpr, FORMAT: tl.constexpr, GROUPS: tl.constexpr, W: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    # A thread loads a word of four rows at once, and stores them row by row: so neither needs the
    # lanes to exchange anything.
    WORDS: tl.constexpr = K // 4 if FORMAT == Q8_0 else K // 8
    group = (program * GROUPS + tl.arange(0, GROUPS)).to(tl.int64)
    word = tl.program_id(1) * W + tl.arange(0, W)
    quad, r = group[:, None, None], tl.arange(0, 4)[None, None, :]
    there = (quad * 4 < rows) & (word < WORDS)[None, :, None]
    q_at, high_at, scales_at, supers_at = _places(quad, word[None, :, None], K, FORMAT)
    q = _rows_of(tl.load(q_ptr + q_at + r, mask=there, other=0))
    supers = _rows_of(tl.load(supers_ptr + supers_at + r, mask=there, other=0))
    high, scales = q, supers
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        high = _rows_of(tl.load(high_ptr + high_at + r, mask=there, other=0))
    if FORMAT == Q4_K or FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == IQ4_XS:
        scales = _rows_of(tl.load(scales_ptr + scales_at + r, mask=there, other=0))
    for i in tl.static_range(4):
        row = (group * 4 + i)[:, None]
        mask = (row < rows) & (word < WORDS)[None, :]
        _put(
            q[i], high[i], scales[i], supers[i], word[None, :], out_ptr + row * K, mask, 1.0,
            FORMAT, ASM,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "N"])
def gather_kernel(
    q_ptr, high_ptr, scales_ptr, supers_ptr, index_ptr, out_ptr, rows, N, scale,
    K: tl.constexpr, FORMAT: tl.constexpr, W: tl.constexpr, PDL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Grid (rows, words / W): out [rows, K] = rows of a matrix of N rows, selected by
    ``index_ptr``, times ``scale``."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    WORDS: tl.constexpr = K // 4 if FORMAT == Q8_0 else K // 8
    to = (tl.program_id(0) + tl.arange(0, 1))[:, None]
    row = tl.minimum(tl.maximum(tl.load(index_ptr + to), 0), N - 1)
    word = (tl.program_id(1) * W + tl.arange(0, W))[None, :]
    mask = (to < rows) & (word < WORDS)
    q_at, high_at, scales_at, supers_at = _places(row.to(tl.int64) // 4, word, K, FORMAT)
    r = row % 4
    q = tl.load(q_ptr + q_at + r, mask=mask, other=0)
    supers = tl.load(supers_ptr + supers_at + r, mask=mask, other=0)
    high, scales = q, supers
    if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
        high = tl.load(high_ptr + high_at + r, mask=mask, other=0)
    if FORMAT == Q4_K or FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == IQ4_XS:
        scales = tl.load(scales_ptr + scales_at + r, mask=mask, other=0)
    target = out_ptr + to.to(tl.int64) * K
    _put(q, high, scales, supers, word, target, mask, scale, FORMAT, ASM)

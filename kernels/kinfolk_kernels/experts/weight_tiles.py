"""Loads tiles of dense or packed matrices as numbers for tensor cores."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.experts import stacks
from kinfolk_kernels.linear.int8_dots import IQ4_XS, Q4_0, Q5_0, Q5_K, Q6_K, Q8_0, table_value
from kinfolk_kernels.packed_integers import byte_of, first_half, second_half
from kinfolk_kernels.plane_words import high_run_of, place_of, run_of

DENSE = tl.constexpr(stacks.DENSE)
"""The format number of dense matrices."""


@triton.jit
def _as_half(codes, OFFSET: tl.constexpr):
    """Codes below 1024 minus OFFSET, as float16: the code is set in the low bits of 1024."""
    return (codes | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + OFFSET)


@triton.jit
def _scaled(codes, factor, OFFSET: tl.constexpr):
    return _as_half(codes, OFFSET) * factor.to(tl.float16)[:, None]


@triton.jit
def weight_tile(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    n,
    group,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Columns 0-31 and 32-63 of a group of 64 columns, of rows ``n``: two tiles [rows, 32].

    A packed matrix is given by pointers to bytes of codes and high bits and to words of scales and
    supers; the tiles are float16, codes times float16(super * scale). Tiles of a dense matrix have
    its dtype, and are zero beyond column K.
    """
    if FORMAT == DENSE:
        column = group * 64 + tl.arange(0, 32)[None, :]
        at = q_ptr + n.to(tl.int64)[:, None] * K + column
        w0 = tl.load(at, mask=column < K, other=0.0)
        w1 = tl.load(at + 32, mask=column + 32 < K, other=0.0)
    else:
        w0, w1 = _unpacked(q_ptr, high_ptr, scales_ptr, supers_ptr, n, group, K, FORMAT)
    return w0, w1


@triton.jit
def _unpacked(
    q_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    n,
    group,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
):
    SMALL: tl.constexpr = FORMAT == Q8_0 or FORMAT == Q4_0 or FORMAT == Q5_0
    ROW: tl.constexpr = K * 4 if FORMAT == Q8_0 else K * 2
    SUPERS: tl.constexpr = K // 64 if SMALL else K // 256
    HIGHS: tl.constexpr = K // 16 if FORMAT == Q6_K else (K + 255) // 256 * 8
    RUN: tl.constexpr = 4 if FORMAT == Q8_0 else 2
    word, byte = tl.arange(0, 32) // 4, (tl.arange(0, 32) % 4)[None, :]
    quad, r = n // 4, n % 4
    at, step = run_of(group, K // 64, RUN)
    place = place_of(word, at, step, RUN)[None, :]
    at = q_ptr + quad[:, None] * ROW + place * 16 + (r * 4)[:, None] + byte
    low_bytes = tl.load(at)
    supers = tl.load(supers_ptr + (quad * SUPERS + group // (1 if SMALL else 4)) * 4 + r)
    d = first_half(supers)
    if FORMAT == Q8_0:
        w0 = low_bytes.to(tl.int8, bitcast=True).to(tl.float16) * d.to(tl.float16)[:, None]
        w1 = tl.load(at + 2 * step * 16).to(tl.int8, bitcast=True).to(tl.float16)
        w1 = w1 * second_half(supers).to(tl.float16)[:, None]
    else:
        low = (low_bytes & 15).to(tl.int16)
        top = (low_bytes >> 4).to(tl.int16)
        if FORMAT == Q5_K or FORMAT == Q6_K or FORMAT == Q5_0:
            at, step = high_run_of(group, K, FORMAT)
            place = place_of(word, at, step, 2)[None, :]
            at = high_ptr + quad[:, None] * (HIGHS * 16) + place * 16 + (r * 4)[:, None] + byte
            high = tl.load(at).to(tl.int32)
            if FORMAT == Q6_K:
                bits = high >> (4 * (group % 2))
                low = low | ((bits & 3) << 4).to(tl.int16)
                top = top | ((bits & 12) << 2).to(tl.int16)
            else:
                bits = high >> (2 * (group % 4))
                low = low | ((bits & 1) << 4).to(tl.int16)
                top = top | ((bits & 2) << 3).to(tl.int16)
        if SMALL:
            OFFSET: tl.constexpr = 16 if FORMAT == Q5_0 else 8
            w0 = _scaled(low, d, OFFSET)
            w1 = _scaled(top, second_half(supers), OFFSET)
        else:
            scales = tl.load(scales_ptr + (quad * (K // 64) + group) * 4 + r)
            w0, w1 = _with_scales(low, top, scales, d, second_half(supers), FORMAT)
    return w0, w1


@triton.jit
def _with_scales(low, top, scales, d, least, FORMAT: tl.constexpr):
    """Numbers from the codes of a format with blocks of 256."""
    if FORMAT == Q6_K:
        front = (tl.arange(0, 32) < 16)[None, :]
        a = (d * byte_of(scales, 0).to(tl.float32)).to(tl.float16)[:, None]
        b = (d * byte_of(scales, 2).to(tl.float32)).to(tl.float16)[:, None]
        c = (d * byte_of(scales, 1).to(tl.float32)).to(tl.float16)[:, None]
        e = (d * byte_of(scales, 3).to(tl.float32)).to(tl.float16)[:, None]
        w0 = _as_half(low, 32) * tl.where(front, a, b)
        w1 = _as_half(top, 32) * tl.where(front, c, e)
    elif FORMAT == IQ4_XS:
        a = (d * byte_of(scales, 0).to(tl.float32)).to(tl.float16)
        b = (d * byte_of(scales, 1).to(tl.float32)).to(tl.float16)
        w0 = table_value(low.to(tl.int32)).to(tl.float16) * a[:, None]
        w1 = table_value(top.to(tl.int32)).to(tl.float16) * b[:, None]
    else:
        low_min = (least * ((scales >> 16) & 255).to(tl.float32)).to(tl.float16)
        top_min = (least * ((scales >> 24) & 255).to(tl.float32)).to(tl.float16)
        w0 = _scaled(low, d * (scales & 255).to(tl.float32), 0) - low_min[:, None]
        w1 = _scaled(top, d * ((scales >> 8) & 255).to(tl.float32), 0) - top_min[:, None]
    return w0, w1

"""Online softmax over tiles of keys and values (Milakov and Gimelshein, 2018).

Scores are in units of log2 e, so that exponentials are powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.coded_tiles import KV_PLAIN, KV_Q4_0, columns, load_codes, load_tile


@triton.jit
def load_query(
    q_ptr,
    row_at,
    inside,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,
    FORMAT: tl.constexpr,
    DOT: tl.constexpr,
):
    """Query rows at offsets ``row_at`` [M], in the two halves that q4_0 keys need (for other
    formats the same tile twice)."""
    low = columns(SIZE, FORMAT, 0)
    high = columns(SIZE, FORMAT, 1)
    first = tl.load(
        q_ptr + row_at[:, None] + low[None, :],
        mask=inside[:, None] & (low < DIM)[None, :],
        other=0.0,
    ).to(DOT)
    second = first
    if FORMAT == KV_Q4_0:
        second = tl.load(
            q_ptr + row_at[:, None] + high[None, :],
            mask=inside[:, None] & (high < DIM)[None, :],
            other=0.0,
        ).to(DOT)
    return first, second


@triton.jit
def scores(
    q, q_high, k_ptr, k_scales, at, scale_at, seen, DIM: tl.constexpr, SIZE: tl.constexpr,
    FORMAT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Products [M, N] of the query with the key rows at offsets ``at`` [N]."""
    if FORMAT == KV_PLAIN:
        k = load_tile(k_ptr, at, seen, DIM, SIZE, q.dtype, MASKED)
        s = tl.dot(q, tl.trans(k), out_dtype=tl.float32, input_precision="ieee")
    else:
        k, k_high = load_codes(k_ptr, k_scales, at, scale_at, seen, DIM, FORMAT, q.dtype, MASKED)
        s = tl.dot(q, tl.trans(k), out_dtype=tl.float32, input_precision="ieee")
        if FORMAT == KV_Q4_0:
            s = tl.dot(q_high, tl.trans(k_high), s, out_dtype=tl.float32, input_precision="ieee")
    return s


@triton.jit
def absorb(
    s, m, total, acc, acc_high, v_ptr, v_scales, at, scale_at, seen, DIM: tl.constexpr,
    SIZE: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Scores [M, N], minus infinity where masked, and their values [N, SIZE] -> the new maximum
    [M], sum [M] and weighted values [M, SIZE] (for q4_0 in halves)."""
    highest = tl.maximum(m, tl.max(s, 1))
    # A row that has seen no position yet would compute inf - inf, which is NaN.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    p = tl.exp2(s - base[:, None])
    keep = tl.exp2(m - base)
    total = total * keep + tl.sum(p, 1)
    acc = acc * keep[:, None]
    if FORMAT == KV_PLAIN:
        v = load_tile(v_ptr, at, seen, DIM, SIZE, DOT, MASKED)
        acc = tl.dot(p.to(DOT), v, acc, out_dtype=tl.float32, input_precision="ieee")
    else:
        v, v_high = load_codes(v_ptr, v_scales, at, scale_at, seen, DIM, FORMAT, DOT, MASKED)
        acc = tl.dot(p.to(DOT), v, acc, out_dtype=tl.float32, input_precision="ieee")
        if FORMAT == KV_Q4_0:
            acc_high = acc_high * keep[:, None]
            acc_high = tl.dot(
                p.to(DOT), v_high, acc_high, out_dtype=tl.float32, input_precision="ieee"
            )
    return highest, total, acc, acc_high

"""The kernels of root-mean-square normalisation."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.curves import silu
from kinfolk_kernels.row_outputs import store_rows


@triton.jit
def _normed(x, weight_ptr, column, inside, width, eps, WEIGHT: tl.constexpr):
    """x [ROWS, COLUMNS] over its root mean square, 0 outside."""
    mean = tl.sum(x * x, 1) / width
    y = x * tl.rsqrt(mean + eps)[:, None]
    if WEIGHT:
        weight = tl.load(weight_ptr + column, mask=column < width, other=0.0)
        y *= weight.to(tl.float32)[None, :]
    return tl.where(inside, y, 0.0)


@triton.jit(do_not_specialize=["rows"])
def norm_kernel(
    x_ptr,
    weight_ptr,
    branch_ptr,
    branch_weight_ptr,
    sum_ptr,
    out_ptr,
    words_ptr,
    scale_ptr,
    sums_ptr,
    rows,
    inner,
    width,
    outer_stride,
    inner_stride,
    branch_row,
    eps,
    branch_eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BRANCH: tl.constexpr,
    BRANCH_NORM: tl.constexpr,
    BRANCH_WEIGHT: tl.constexpr,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
):
    """Grid rows / ROWS: norm of rows of x [rows / inner, inner, width]; with BRANCH of x + branch,
    which is written to ``sum``, the branch normed before if it has a norm of its own."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = (row // inner * outer_stride + row % inner * inner_stride)[:, None] + column[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if BRANCH:
        b_at = row[:, None] * branch_row + column[None, :]
        branch = tl.load(branch_ptr + b_at, mask=inside, other=0.0).to(tl.float32)
        if BRANCH_NORM:
            branch = _normed(
                branch, branch_weight_ptr, column, inside, width, branch_eps, BRANCH_WEIGHT
            )
        x += branch
        tl.store(sum_ptr + row[:, None] * width + column[None, :], x, mask=inside)
    y = _normed(x, weight_ptr, column, inside, width, eps, WEIGHT)
    store_rows(
        y,
        row,
        0,
        inside,
        width,
        out_ptr,
        words_ptr,
        scale_ptr,
        sums_ptr,
        ROWS,
        COLUMNS,
        VALUES,
        INT8,
    )


@triton.jit
def gated_norm_kernel(
    x_ptr,
    weight_ptr,
    gate_ptr,
    out_ptr,
    words_ptr,
    scale_ptr,
    sums_ptr,
    heads,
    gate_row,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
):
    """Grid (rows, heads / HEADS): x [rows, heads, DIM] normed in each head, times silu(gate)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    head = first + tl.arange(0, HEADS)
    column = tl.arange(0, DIM)
    inside = (head < heads)[:, None] & (column < DIM)[None, :]
    place = head[:, None] * DIM + column[None, :]
    x = tl.load(x_ptr + row * heads * DIM + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_row + place, mask=inside, other=0.0).to(tl.float32)
    y = _normed(x, weight_ptr, column, inside, DIM, eps, True) * silu(gate)
    line = tl.reshape(y, [1, HEADS * DIM])
    place = first * DIM + tl.arange(0, HEADS * DIM)
    store_rows(
        line,
        row + tl.arange(0, 1),
        first * DIM,
        (place < heads * DIM)[None, :],
        heads * DIM,
        out_ptr,
        words_ptr,
        scale_ptr,
        sums_ptr,
        1,
        HEADS * DIM,
        VALUES,
        INT8,
    )

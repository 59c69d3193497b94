"""The kernels of root-mean-square normalisation.

Rows are taken in tiles of groups of 64 columns, four columns to a lane; see ``columns_of``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.curves import silu
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.row_outputs import columns_of, store_groups


@triton.jit
def _load(pointer, at, live, column, width):
    """float32 [rows, GROUPS, 16, 4], 0 outside."""
    inside = live[:, None, None, None] & (column < width)
    return tl.load(pointer + at[:, None, None, None] + column, mask=inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def _sum(x):
    """[rows] of a tile."""
    return tl.sum(tl.sum(tl.sum(x, 3), 2), 1)


@triton.jit
def _factors(weight_ptr, column, width):
    """Weights as float32, 0 outside."""
    return tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)


@triton.jit
def _inverse(tiles, width, eps, TILES: tl.constexpr):
    """[rows, 1, 1, 1]: one over the root mean square of rows in tiles."""
    squares = tiles[0] * tiles[0]
    for i in tl.static_range(1, TILES):
        squares += tiles[i] * tiles[i]
    return tl.rsqrt(_sum(squares) / width + eps)[:, None, None, None]


@triton.jit(do_not_specialize=["rows", "scale_step"])
def norm_kernel(
    x_ptr,
    weight_ptr,
    branch_ptr,
    branch_weight_ptr,
    factor_ptr,
    sum_ptr,
    out_ptr,
    words_ptr,
    scale_ptr,
    scale_step,
    rows,
    inner,
    width,
    outer_stride,
    inner_stride,
    branch_row,
    eps,
    branch_eps,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    OWN: tl.constexpr,
    WEIGHT: tl.constexpr,
    BRANCH: tl.constexpr,
    BRANCH_NORM: tl.constexpr,
    BRANCH_WEIGHT: tl.constexpr,
    FACTOR: tl.constexpr,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows / ROWS, TILES / OWN): norm of rows of x [rows / inner, inner, width]; with BRANCH
    of (x + branch) * factor, which is written to ``sum``, the branch normed before if it has a norm
    of its own. Every program reads whole rows and writes OWN of their TILES of GROUPS * 64."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    mine = tl.program_id(1) * OWN
    weights = ()
    if WEIGHT:
        for i in tl.static_range(OWN):
            column = columns_of((mine + i) * (GROUPS * 64), GROUPS)
            weights = weights + (_factors(weight_ptr, column, width),)  # type: ignore[assignment]
    after = ()
    if BRANCH_WEIGHT:
        for i in tl.static_range(TILES):
            column = columns_of(i * GROUPS * 64, GROUPS)
            after = after + (_factors(branch_weight_ptr, column, width),)  # type: ignore[assignment]
    factor = 1.0
    if FACTOR:
        factor = tl.load(factor_ptr).to(tl.float32)
    wait_for_producers(PDL)
    at = row // inner * outer_stride + row % inner * inner_stride
    x = ()
    branch = ()
    for i in tl.static_range(TILES):
        column = columns_of(i * GROUPS * 64, GROUPS)
        x = x + (_load(x_ptr, at, live, column, width),)  # type: ignore[assignment]
        if BRANCH:
            branch = branch + (_load(branch_ptr, row * branch_row, live, column, width),)  # type: ignore[assignment]
    if BRANCH:
        if BRANCH_NORM:
            inverse = _inverse(branch, width, branch_eps, TILES)
            normed = ()
            for i in tl.static_range(TILES):
                y = branch[i] * inverse
                if BRANCH_WEIGHT:
                    y *= after[i]
                normed = normed + (y,)  # type: ignore[assignment]
            branch = normed
        total = ()
        for i in tl.static_range(TILES):
            y = x[i] + branch[i]
            if FACTOR:
                y *= factor
            total = total + (y,)  # type: ignore[assignment]
        x = total
    inverse = _inverse(x, width, eps, TILES)
    for i in tl.static_range(OWN):
        first = (mine + i) * (GROUPS * 64)
        y = x[i]
        if OWN < TILES:
            for other in tl.static_range(1, TILES):
                y = tl.where(mine == other, x[other], y)
        if BRANCH:
            store_groups(
                y, row * width, live, first, width, sum_ptr, sum_ptr,
                sum_ptr, row, scale_step, True, False,
            )  # fmt: skip
        y = y * inverse
        if WEIGHT:
            y *= weights[i]
        store_groups(
            y, row * width, live, first, width, out_ptr, words_ptr,
            scale_ptr, row, scale_step, VALUES, INT8,
        )  # fmt: skip


@triton.jit(do_not_specialize=["scale_step"])
def gated_norm_kernel(
    x_ptr,
    weight_ptr,
    gate_ptr,
    out_ptr,
    words_ptr,
    scale_ptr,
    scale_step,
    heads,
    gate_row,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, heads / HEADS): x [rows, heads, DIM] normed in each head, times silu(gate)."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = head < heads
    column = columns_of(0, (DIM + 63) // 64)
    weight = _factors(weight_ptr, column, DIM)
    wait_for_producers(PDL)
    line = row * heads * DIM + head * DIM
    x = _load(x_ptr, line, live, column, DIM)
    gate = _load(gate_ptr, row * gate_row + head * DIM, live, column, DIM)
    y = x * _inverse((x,), DIM, eps, 1) * weight * silu(gate)
    scale_start = row + head * (DIM // 64) * scale_step
    store_groups(
        y, line, live, 0, DIM, out_ptr, words_ptr, scale_ptr, scale_start, scale_step, VALUES, INT8
    )

"""The kernels that convert rows to the forms that matrix products read."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import activation
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.mma_rows import (
    MOST_WARP_TILES,
    WARPGROUP_STEP,
    half_places,
    mma_place,
    power_of_two,
)
from kinfolk_kernels.row_outputs import load_groups, store_groups

NO_ACTIVATION = tl.constexpr(-1)
"""In the place of an activation's number: rows are converted as they are."""


@triton.jit(do_not_specialize=["scale_step"])
def int8_kernel(
    x_ptr,
    words_ptr,
    scale_ptr,
    scale_step,
    width,
    x_row,
    GROUPS: tl.constexpr,
    INT8: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, width / GROUPS / 64): converts rows to int8; INT8: see ``int8_kind``."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (GROUPS * 64)
    line = row + tl.arange(0, 1)
    wait_for_producers(PDL)
    x = load_groups(x_ptr, line * x_row, line >= 0, first, width, GROUPS, False)
    store_groups(
        x, line * width, line >= 0, first, width, words_ptr, words_ptr,
        scale_ptr, line, scale_step, False, INT8, False,
    )  # fmt: skip


@triton.jit
def _eights(x_ptr, first, K: tl.constexpr, COLUMNS: tl.constexpr):
    """COLUMNS numbers of a row from column ``first`` on, [COLUMNS / 8, 8]; zero where there is no
    column."""
    eight = tl.arange(0, COLUMNS // 8)[:, None] * 8
    column = first + eight + tl.arange(0, 8)[None, :]
    return tl.load(x_ptr + column, mask=column < K, other=0.0)


@triton.jit
def _converted(
    x_ptr, up_ptr, at, first, K: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr
):
    """float32 [COLUMNS / 8, 8]: what ``f16_kernel`` converts of the row that begins at ``at``."""
    x = _eights(x_ptr + at, first, K, COLUMNS).to(tl.float32)
    if ACTIVATION != NO_ACTIVATION:
        x = activation(x, ACTIVATION) * _eights(up_ptr + at, first, K, COLUMNS).to(tl.float32)
    return x


@triton.jit
def _words(x, COLUMNS: tl.constexpr):
    """Float16 bits [COLUMNS / 8, 4], of columns 2 e of a half c2 in the order 2 c2 + e, as words
    [COLUMNS / 8, 2] of both e."""
    low, high = tl.split(tl.reshape(x.to(tl.int16, bitcast=True), [COLUMNS // 8, 2, 2]))
    return (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)


@triton.jit
def f16_kernel(
    x_ptr,
    up_ptr,
    numbers_ptr,
    factor_ptr,
    x_row,
    K: tl.constexpr,
    TILES: tl.constexpr,
    COLUMNS: tl.constexpr,
    OWN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, K / COLUMNS / OWN): a row divided by a power of two, as float16, in the order of
    ``half_places``, zero where there is no column. With the number of an activation, the row is
    activation(x) * up. Rows follow each other or, with TILES, stand in
    the order of ``MmaRows``: in parts of as many tiles of eight. ``numbers``: two of them a
    word."""
    start_dependents(PDL)
    WIDTH: tl.constexpr = (K + 127) // 128 * 128
    PARTS: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1) * OWN
    wait_for_producers(PDL)
    largest = tl.zeros([COLUMNS // 8, 8], tl.float32)
    for i in tl.static_range(PARTS):
        x = _converted(x_ptr, up_ptr, row * x_row, i * COLUMNS, K, COLUMNS, ACTIVATION)
        largest = tl.maximum(largest, tl.abs(x))
    factor, inverse = power_of_two(tl.max(tl.max(largest, 1), 0))
    tl.store(factor_ptr + row, inverse, mask=own == 0)
    for part in tl.static_range(OWN):
        first = (own + part) * COLUMNS
        if PARTS > 1:
            x = _converted(x_ptr, up_ptr, row * x_row, first, K, COLUMNS, ACTIVATION)
        halves = (x * factor).to(tl.float16)
        even, odd = tl.split(tl.reshape(halves, [COLUMNS // 8, 4, 2]))
        eight = first // 8 + tl.arange(0, COLUMNS // 8)[:, None]
        i, h, c = half_places(eight, tl.arange(0, 2)[None, :], K)
        if TILES:
            place = mma_place(row, eight, i, h, c, WIDTH // 128, TILES)
            step = WARPGROUP_STEP if TILES > MOST_WARP_TILES else 1
        else:
            place = row * (WIDTH // 2) + eight // 16 * 64 + i * 16 + h * 8 + c
            step = 4
        live = eight * 8 < WIDTH
        tl.store(numbers_ptr + place, _words(even, COLUMNS), mask=live)
        tl.store(numbers_ptr + place + step, _words(odd, COLUMNS), mask=live)

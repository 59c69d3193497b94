"""The kernels that convert rows to the forms that matrix products read."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.linear.gemm_f16_kernel import half_columns
from kinfolk_kernels.row_outputs import columns_of, store_groups


@triton.jit(do_not_specialize=["scale_step"])
def int8_kernel(
    x_ptr,
    words_ptr,
    scale_ptr,
    scale_step,
    width,
    x_row,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, width / GROUPS / 64): converts rows to int8."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (GROUPS * 64)
    column = columns_of(first, GROUPS)
    wait_for_producers(PDL)
    x = tl.load(x_ptr + row * x_row + column, mask=column < width, other=0.0).to(tl.float32)
    line = row + tl.arange(0, 1)
    store_groups(
        x, line * width, line >= 0, first, width, words_ptr, words_ptr,
        scale_ptr, line, scale_step, False, True, False,
    )  # fmt: skip


@triton.jit
def _power_of_two(amax):
    """The factor of a row that makes its largest number 2^13 to 2^14, and the inverse of the
    factor: no number overflows float16, and small ones keep bits."""
    exponent = (amax.to(tl.int32, bitcast=True) >> 23) & 255
    shift = tl.minimum(tl.maximum(exponent - 140, -100), 100)
    factor = ((127 - shift) << 23).to(tl.float32, bitcast=True)
    return factor, ((127 + shift) << 23).to(tl.float32, bitcast=True)


@triton.jit
def f16_kernel(
    x_ptr,
    numbers_ptr,
    factor_ptr,
    x_row,
    K: tl.constexpr,
    TILES: tl.constexpr,
    WARPGROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, K / COLUMNS): a row divided by a power of two, as float16, in the order of
    ``half_columns``, zero where there is no column. Rows follow each other or, with TILES, stand in
    the order of ``MmaRows``: in parts of as many tiles of eight, with or without WARPGROUPS."""
    start_dependents(PDL)
    WIDTH: tl.constexpr = (K + 127) // 128 * 128
    PARTS: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    wait_for_producers(PDL)
    largest = tl.zeros([COLUMNS], tl.float32)
    for i in tl.static_range(PARTS):
        column = i * COLUMNS + tl.arange(0, COLUMNS)
        x = tl.load(x_ptr + row * x_row + column, mask=column < K, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    factor, inverse = _power_of_two(tl.max(largest, 0))
    tl.store(factor_ptr + row, inverse, mask=part == 0)
    at = part * COLUMNS + tl.arange(0, COLUMNS)
    column = half_columns(at // 128, at % 128, K)
    x = tl.load(x_ptr + row * x_row + column, mask=column < K, other=0.0).to(tl.float32)
    place = row * WIDTH + at
    if TILES:
        # Of a place of a pair: word, nibble, half, lane's columns and which of the two.
        word, h, p, c, e = at % 128 // 32, at // 16 % 2, at // 8 % 2, at // 2 % 4, at % 2
        part_of_rows = row // (8 * TILES)
        tile = ((part_of_rows * (WIDTH // 128) + at // 128) * 4 + word) * TILES + row // 8 % TILES
        lane = row % 8 * 4 + c
        inside = ((2 * h + p) * 32 + lane) * 2 if WARPGROUPS else lane * 8 + (2 * h + p) * 2
        place = tile * 256 + inside + e
    tl.store(numbers_ptr + place, (x * factor).to(tl.float16), mask=at < WIDTH)

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
        scale_ptr, line, scale_step, False, True,
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
    x_ptr, numbers_ptr, factor_ptr, x_row, K: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr
):
    """Grid (rows, K / COLUMNS): a row divided by a power of two, as float16, in the order of
    ``half_columns``, zero where there is no column."""
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
    tl.store(numbers_ptr + row * WIDTH + at, (x * factor).to(tl.float16), mask=at < WIDTH)


@triton.jit(do_not_specialize=["rows"])
def halves_kernel(
    x_ptr,
    words_ptr,
    scale_ptr,
    rows,
    x_row,
    K: tl.constexpr,
    NT: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (8 NT,): a row divided by a power of two, as float16, in the order of tensor core
    operands.

    words int32 [K / 64, NT, 2, 32, 4]: group, eight rows, half of the group, lane 4 (row % 8) + c,
    pairs of columns (4 c, 4 c + 1), (4 c + 2, 4 c + 3) and these plus 16. Rows beyond the last are
    zero.
    """
    start_dependents(PDL)
    wait_for_producers(PDL)
    row = tl.program_id(0).to(tl.int64)
    end = tl.where(row < rows, K, 0)
    largest = tl.zeros([COLUMNS], tl.float32)
    for start in tl.range(0, K, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = tl.load(x_ptr + row * x_row + column, mask=column < end, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    amax = tl.max(largest, 0)
    factor, inverse = _power_of_two(amax)
    tl.store(scale_ptr + row, inverse)
    for start in tl.range(0, K, COLUMNS):
        pair = start // 2 + tl.arange(0, COLUMNS // 2)
        inside = pair < end // 2
        at = x_ptr + row * x_row + 2 * pair
        first = (tl.load(at, mask=inside, other=0.0).to(tl.float32) * factor).to(tl.float16)
        second = (tl.load(at + 1, mask=inside, other=0.0).to(tl.float32) * factor).to(tl.float16)
        low = first.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        word = low | (second.to(tl.int16, bitcast=True).to(tl.int32) << 16)
        group, half, run = pair // 32, pair // 16 % 2, pair // 8 % 2
        c, which = pair // 2 % 4, pair % 2
        place = ((group * NT + row // 8) * 2 + half) * 32 + (row % 8) * 4 + c
        tl.store(words_ptr + place * 4 + run * 2 + which, word, mask=pair < K // 2)

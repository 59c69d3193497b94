"""The kernels that convert rows to the forms that matrix products read."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
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
def half_places(eight, c2, K: tl.constexpr):
    """Where the numbers of eight neighbouring columns stand in their pair of groups: the word ``i``
    of a lane, its nibble ``h``, and lane ``c`` of four.

    ``eight`` counts eights of columns from the first on, ``c2`` their halves. The place of a number
    is 32 i + 16 h + 8 p + 2 c + e: byte p + 2 e of the lane's word i, in its low (h = 0) or high
    nibbles. Lane c has words 2 i and 2 i + 1 of the first group if c is 0 or 1, and of the second
    if it is 2 or 3; words c and c + 4 of a last group without a partner.
    """
    group, h, w = eight // 8 % 2, eight // 4 % 2, eight % 4
    i, c = w, 2 * group + c2
    if K % 128 != 0:
        paired = eight // 16 < K // 128
        i = tl.where(paired, i, w // 2 + 2 * group)
        c = tl.where(paired, c, w % 2 * 2 + c2)
    return i, h, c


@triton.jit
def _eights(x_ptr, first, K: tl.constexpr, COLUMNS: tl.constexpr):
    """COLUMNS numbers of a row from column ``first`` on, [COLUMNS / 8, 8]; zero where there is no
    column."""
    eight = tl.arange(0, COLUMNS // 8)[:, None] * 8
    column = first + eight + tl.arange(0, 8)[None, :]
    return tl.load(x_ptr + column, mask=column < K, other=0.0)


@triton.jit
def _words(x, COLUMNS: tl.constexpr):
    """Float16 bits [COLUMNS / 8, 4], of columns 2 e of a half c2 in the order 2 c2 + e, as words
    [COLUMNS / 8, 2] of both e."""
    low, high = tl.split(tl.reshape(x.to(tl.int16, bitcast=True), [COLUMNS // 8, 2, 2]))
    return (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)


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
    OWN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, K / COLUMNS / OWN): a row divided by a power of two, as float16, in the order of
    ``half_places``, zero where there is no column. Rows follow each other or, with TILES, stand in
    the order of ``MmaRows``: in parts of as many tiles of eight, with or without WARPGROUPS.
    ``numbers``: two of them a word."""
    start_dependents(PDL)
    WIDTH: tl.constexpr = (K + 127) // 128 * 128
    PARTS: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1) * OWN
    wait_for_producers(PDL)
    largest = tl.zeros([COLUMNS // 8, 8], tl.float32)
    for i in tl.static_range(PARTS):
        x = _eights(x_ptr + row * x_row, i * COLUMNS, K, COLUMNS)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    factor, inverse = _power_of_two(tl.max(tl.max(largest, 1), 0))
    tl.store(factor_ptr + row, inverse, mask=own == 0)
    for part in tl.static_range(OWN):
        first = (own + part) * COLUMNS
        if PARTS > 1:
            x = _eights(x_ptr + row * x_row, first, K, COLUMNS)
        halves = (x.to(tl.float32) * factor).to(tl.float16)
        even, odd = tl.split(tl.reshape(halves, [COLUMNS // 8, 4, 2]))
        eight = first // 8 + tl.arange(0, COLUMNS // 8)[:, None]
        i, h, c = half_places(eight, tl.arange(0, 2)[None, :], K)
        if TILES:
            tile = (row // (8 * TILES) * (WIDTH // 128) + eight // 16) * 4 + i
            lane = row % 8 * 4 + c
            place = (tile * TILES + row // 8 % TILES) * 128
            place += h * 64 + lane if WARPGROUPS else lane * 4 + h * 2
            step = 32 if WARPGROUPS else 1
        else:
            place = row * (WIDTH // 2) + eight // 16 * 64 + i * 16 + h * 8 + c
            step = 4
        live = eight * 8 < WIDTH
        tl.store(numbers_ptr + place, _words(even, COLUMNS), mask=live)
        tl.store(numbers_ptr + place + step, _words(odd, COLUMNS), mask=live)

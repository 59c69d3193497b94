"""Activations as float16 in the order in which the tensor cores of sm_90 read them.

A row has one factor, a power of two from its largest number. So a kernel that makes rows can store
them in this form if one program has a whole row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

WARP_ROW_TILES = (1, 2, 3, 4)
"""Numbers of tiles of eight rows that ``gemm_mma`` is compiled for, by warps alone."""

WARPGROUP_ROW_TILES = (8, 12, 16)
"""The same, by four warps together: for more rows than warps alone multiply."""

MAX_PART_ROWS = 8 * WARPGROUP_ROW_TILES[-1]
"""Most rows of a part."""

MAX_MMA_ROWS = 4 * MAX_PART_ROWS
"""Most rows that ``gemm_mma`` multiplies, in parts."""

PAIR_NUMBERS = 128
"""Numbers of a pair of groups of columns."""

MOST_WARP_TILES = tl.constexpr(WARP_ROW_TILES[-1])
"""Most tiles of rows that are in the order for warps alone."""

WARPGROUP_STEP = tl.constexpr(32)
"""See ``mma_place``."""


@dataclass(frozen=True, slots=True)
class MmaRows:
    """R rows of K numbers as float16 in the order of the right operand of ``mma.sync`` or, with
    ``warpgroups``, of ``wgmma``.

    ``numbers`` float16 [parts, P, 4, T, 256]: part of up to 8 T rows, pair of groups of columns,
    word, tile of eight rows, and its numbers for two steps of 16 columns, which are places
    32 word + 16 h + 8 p + 2 c + e of ``half_places``. They stand in the order [row, c, h, p, e]:
    those of a lane side by side. With ``warpgroups`` the order is [h, p, row, c, e]: blocks of
    eight rows and eight columns. A row is its numbers times its ``factor``, float32 [R]. Rows
    beyond R are uninitialised.
    """

    numbers: torch.Tensor
    factor: torch.Tensor

    @property
    def tiles(self) -> int:
        return int(self.numbers.shape[3])

    @property
    def warpgroups(self) -> bool:
        return self.tiles > WARP_ROW_TILES[-1]

    @property
    def parts(self) -> int:
        return int(self.numbers.shape[0])

    @staticmethod
    def make(rows: int, width: int, device: torch.device) -> MmaRows:
        """Uninitialised rows, in the fewest parts, of the least number of tiles that holds them."""
        counts = (*WARP_ROW_TILES, *WARPGROUP_ROW_TILES)
        parts = -(-rows // MAX_PART_ROWS)
        tiles = next(tiles for tiles in counts if parts * 8 * tiles >= rows)
        shape = (parts, -(-width // PAIR_NUMBERS), 4, tiles, 256)
        numbers = torch.empty(shape, dtype=torch.float16, device=device)
        return MmaRows(numbers, torch.empty(rows, device=device))


def with_mma(values: torch.Tensor, rows: MmaRows | None) -> torch.Tensor:
    """``values`` [R, K] with ``rows``, the same numbers for ``gemm_mma``, attached to the tensor;
    see ``with_int8``."""
    if rows is not None:
        values.mma_rows = rows  # type: ignore[attr-defined]
    return values


def made_mma(values: torch.Tensor) -> MmaRows | None:
    """The rows for ``gemm_mma`` attached to ``values``, or ``None``."""
    rows: MmaRows | None = getattr(values, "mma_rows", None)
    return rows


@triton.jit
def power_of_two(amax):
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
def mma_place(row, eight, i, h, c, pairs, TILES: tl.constexpr):
    """The place, in words of two numbers, of what ``half_places`` found for eights of columns of a
    row; ``pairs`` of groups in a row. The second of a half's words follows it or, for warpgroups,
    is ``WARPGROUP_STEP`` on."""
    tile = (row // (8 * TILES) * pairs + eight // 16) * 4 + i
    lane = row % 8 * 4 + c
    place = (tile * TILES + row // 8 % TILES) * 128
    place += h * 64 + lane if TILES > MOST_WARP_TILES else lane * 4 + h * 2
    return place


COMPILED = tl.constexpr(isinstance(power_of_two, triton.JITFunction))
"""Whether kernels are compiled: the interpreter knows no assembly."""


@triton.jit
def _pair(low, high):
    """Two numbers as float16 in a word. One instruction; of two conversions each would take eight
    times as long."""
    if COMPILED:
        word = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;",
            "=r,f,f",
            [low, high],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        first, second = low.to(tl.float16), high.to(tl.float16)
        word = first.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        word |= second.to(tl.int16, bitcast=True).to(tl.int32) << 16
    return word


@triton.jit
def largest(x):
    """The largest sizes [A] of numbers of x [A, GROUPS, 16, 4]."""
    return tl.max(tl.max(tl.max(tl.abs(x), 3), 2), 1)


@triton.jit
def store_mma(y, row, live, first, width, numbers_ptr, TILES: tl.constexpr):
    """Store y float32 [A, GROUPS, 16, 4], already divided by its factor, as columns from ``first``
    up to ``width`` of rows ``row`` int64 [A] of ``MmaRows`` of TILES tiles, where ``live`` [A].
    ``first`` and ``width`` must be multiples of 64 and of 128; ``numbers_ptr``: two a word."""
    A: tl.constexpr = y.shape[0]
    GROUPS: tl.constexpr = y.shape[1]
    # Numbers p + 2 e of a lane: words of both e, for each p.
    even, odd = tl.split(tl.reshape(y, [A, GROUPS, 16, 2, 2]))
    low, high = tl.split(even)
    words = _pair(low, high)
    low, high = tl.split(odd)
    others = _pair(low, high)
    if A == 1:
        words, others = tl.reshape(words, [GROUPS * 16]), tl.reshape(others, [GROUPS * 16])
        eight = first // 8 + tl.arange(0, GROUPS * 16) // 2
        c2 = tl.arange(0, GROUPS * 16) % 2
    else:
        lane = tl.arange(0, 16)[None, None, :]
        eight = first // 8 + tl.arange(0, GROUPS)[None, :, None] * 8 + lane // 2
        c2 = lane % 2
        row, live = row[:, None, None], live[:, None, None]
    i, h, c = half_places(eight, c2, 128)
    place = mma_place(row, eight, i, h, c, width // 128, TILES)
    inside = live & (eight * 8 < width)
    if TILES > MOST_WARP_TILES:
        tl.store(numbers_ptr + place, words, mask=inside)
        tl.store(numbers_ptr + place + WARPGROUP_STEP, others, mask=inside)
    elif A == 1:
        both = place[:, None] + tl.arange(0, 2)[None, :]
        tl.store(numbers_ptr + both, tl.join(words, others), mask=inside[:, None])
    else:
        both = place[:, :, :, None] + tl.arange(0, 2)[None, None, None, :]
        tl.store(numbers_ptr + both, tl.join(words, others), mask=inside[:, :, :, None])

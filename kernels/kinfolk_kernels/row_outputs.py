"""Outputs of kernels between matrix products: rows in a float dtype, in a form that products read,
or both.

That form is int8 (``int8_rows``) or float16 in the order of tensor cores (``mma_rows``), computed
before numbers are rounded to the float dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kinfolk_kernels.int8_rows import GROUP_NUMBERS, SUMS_GROUPS, Int8Rows, with_int8
from kinfolk_kernels.mma_rows import MmaRows, with_mma
from kinfolk_kernels.packed_integers import in_two_parts

GROUP_WORDS = tl.constexpr(GROUP_NUMBERS // 4)
"""Int8 words in a group."""

UNIT_GROUPS = tl.constexpr(SUMS_GROUPS)

ROW_TILE_NUMBERS = 4096
"""Numbers of a tile where a program has a whole row: four in each lane of 32 warps. Such a program
leaves no room for a second one on its multiprocessor, so few rows have one each."""

WIDE_ROWS = 128
"""Rows from which numbers of two bytes are moved eight at a time, see ``load_groups``."""

WHOLE = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding a small number rounds it half to even and leaves it in the low bits."""

WHOLE_BITS = tl.constexpr(0x4B400000)

WITH_SUMS = tl.constexpr(2)
"""The number by which kernels store words, scales and sums of int8 rows."""


@dataclass(frozen=True, slots=True)
class RowOutputs:
    """R rows of K numbers, K a multiple of 64 for int8 and of 128 for ``mma``; each may be
    ``None``, and ``int8`` or ``mma`` is."""

    values: torch.Tensor | None
    int8: Int8Rows | None
    mma: MmaRows | None = None

    @staticmethod
    def make(
        rows: int,
        width: int,
        dtype: torch.dtype | None,
        int8: bool,
        device: torch.device,
        mma: bool = False,
    ) -> RowOutputs:
        """Uninitialised ``values`` if ``dtype`` is given, int8 rows if ``int8`` is set, and rows
        for ``gemm_mma`` if ``mma`` is."""
        values = None if dtype is None else torch.empty(rows, width, dtype=dtype, device=device)
        if mma:
            return RowOutputs(values, None, MmaRows.make(rows, width, device))
        if not int8:
            return RowOutputs(values, None)
        return RowOutputs(values, Int8Rows.make(rows, width, device))

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of a kernel by name; an absent output is replaced by another one. ``words`` and
        ``scale`` are those of int8 or, two numbers a word, the numbers and factors of ``mma``."""
        if self.int8 is not None:
            words, scale = self.int8.words, self.int8.scale
        elif self.mma is not None:
            words, scale = self.mma.numbers.view(torch.int32), self.mma.factor
        elif self.values is not None:
            words = scale = self.values
        else:
            raise ValueError("a kernel was asked for no output at all")
        return {
            "out_ptr": words if self.values is None else self.values,
            "words_ptr": words,
            "scale_ptr": scale,
            "scale_step": scale.stride(0),
        }

    @property
    def constants(self) -> dict[str, Any]:
        return {"VALUES": self.values is not None, "INT8": int8_kind(self.int8)}

    @property
    def mma_tiles(self) -> int:
        """The tiles of ``mma``, as kernels take them; 0 = none."""
        return 0 if self.mma is None else self.mma.tiles

    def marked(self, shape: torch.Size) -> torch.Tensor:
        """``values`` in ``shape`` with the form beside them attached. Raises ``ValueError`` if
        there are no values."""
        if self.values is None:
            raise ValueError("no values were asked for")
        return with_mma(with_int8(self.values.view(shape), self.int8), self.mma)


def int8_kind(rows: Int8Rows | None) -> int:
    """What kernels store of int8 rows: 0 = nothing, 1 = words and scales, ``WITH_SUMS``."""
    return 0 if rows is None else 1 if rows.sums is None else WITH_SUMS.value


@triton.jit
def columns_of(first, GROUPS: tl.constexpr):
    """[1, GROUPS, 16, 4]: the columns of GROUPS groups of 64 from ``first``, four in each lane.

    With as many lanes as words, loads and stores need no exchange between lanes, and a group is
    reduced within 16 lanes of a warp.
    """
    group = tl.arange(0, GROUPS)[None, :, None, None]
    lane = tl.arange(0, GROUP_WORDS)[None, None, :, None]
    return first + group * (4 * GROUP_WORDS) + lane * 4 + tl.arange(0, 4)[None, None, None, :]


@triton.jit
def lanes_of(first, GROUPS: tl.constexpr):
    """[GROUPS * 16, 4]: the same columns, of one line.

    Of a tensor [1, GROUPS, 16, 4], Triton 3.6 gives a warp's lanes to different groups first, so
    that each access touches sixteen places and a group's lanes are those of several warps. With
    groups and lanes in one dimension it has no choice, and a reshape moves nothing.
    """
    lane = tl.arange(0, GROUPS * GROUP_WORDS)[:, None]
    return first + lane * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def load_groups(pointer, start, live, first, width, GROUPS: tl.constexpr, WIDE: tl.constexpr):
    """float32 [A, GROUPS, 16, 4]: columns from ``first`` up to ``width`` of the lines that begin at
    ``start`` int64 [A], 0 behind and where not ``live`` [A].

    Lanes have four columns each, and load no more at once. With WIDE they load 16 bytes at once and
    exchange them: accesses of 8 bytes move many rows at 2.5 TB/s, of 16 bytes at 4 (H200).
    """
    if WIDE:
        column = (first + tl.arange(0, GROUPS * 4 * GROUP_WORDS))[None, :]
        inside = live[:, None] & (column < width)
        x = tl.load(pointer + start[:, None] + column, mask=inside, other=0.0)
        x = tl.reshape(x, [start.shape[0], GROUPS, GROUP_WORDS, 4])
    elif start.shape[0] == 1:
        column = lanes_of(first, GROUPS)
        inside = live[:, None] & (column < width)
        x = tl.load(pointer + start[:, None] + column, mask=inside, other=0.0)
        x = tl.reshape(x, [1, GROUPS, GROUP_WORDS, 4])
    else:
        column = columns_of(first, GROUPS)
        inside = live[:, None, None, None] & (column < width)
        x = tl.load(pointer + start[:, None, None, None] + column, mask=inside, other=0.0)
    return x.to(tl.float32)


@triton.jit
def store_groups(
    y,
    start,
    live,
    first,
    width,
    out_ptr,
    words_ptr,
    scale_ptr,
    scale_start,
    scale_step,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Store y float32 [A, GROUPS, 16, 4] as columns from ``first`` up to ``width`` of the lines of
    the outputs that begin at ``start`` int64 [A], where ``live`` [A]. The scale of a line's first
    group is at ``scale_start`` int64 [A], the next one ``scale_step`` further on. For int8,
    ``first``, ``width`` and ``start`` must be multiples of 64. INT8: see ``int8_kind``. WIDE: see
    ``load_groups``."""
    GROUPS: tl.constexpr = y.shape[1]
    if VALUES:
        out = y.to(out_ptr.dtype.element_ty)
        if WIDE:
            column = (first + tl.arange(0, GROUPS * 4 * GROUP_WORDS))[None, :]
            out = tl.reshape(out, [y.shape[0], GROUPS * 4 * GROUP_WORDS])
            inside = live[:, None] & (column < width)
            tl.store(out_ptr + start[:, None] + column, out, mask=inside)
        elif y.shape[0] == 1:
            column = lanes_of(first, GROUPS)
            out = tl.reshape(out, [GROUPS * GROUP_WORDS, 4])
            inside = live[:, None] & (column < width)
            tl.store(out_ptr + start[:, None] + column, out, mask=inside)
        else:
            column = columns_of(first, GROUPS)
            inside = live[:, None, None, None] & (column < width)
            tl.store(out_ptr + start[:, None, None, None] + column, out, mask=inside)
    if INT8:
        scale = tl.max(tl.max(tl.abs(y), 3), 2) / 127.0
        inverse = tl.where(scale > 0, 1.0 / tl.where(scale > 0, scale, 1.0), 0.0)
        q = (y * inverse[:, :, None, None] + WHOLE).to(tl.int32, bitcast=True)
        byte = tl.arange(0, 4)[None, None, None, :]
        words = tl.sum((q & 255) << (8 * byte), 3)
        sums = words
        if INT8 == WITH_SUMS:
            sums = parts_of_sums(tl.sum(q - WHOLE_BITS, 3), scale)
        scale = tl.broadcast_to(scale[:, :, None], words.shape)
        if y.shape[0] == 1:
            lane = tl.arange(0, GROUPS * GROUP_WORDS)
            word = first // 4 + lane
            lane = lane % GROUP_WORDS
            words, scale = tl.reshape(words, [GROUPS * GROUP_WORDS]), tl.reshape(scale, lane.shape)
            sums = tl.reshape(sums, lane.shape)
            inside = live & (word < width // 4)
            words_at, scale_at = start // 4, scale_start
        else:
            lane = tl.arange(0, GROUP_WORDS)[None, None, :]
            word = first // 4 + tl.arange(0, GROUPS)[None, :, None] * GROUP_WORDS + lane
            inside = live[:, None, None] & (word < width // 4)
            words_at, scale_at = (start // 4)[:, None, None], scale_start[:, None, None]
        place = word - lane + lane % 4 * 4 + lane // 4
        tl.store(words_ptr + words_at + place, words, mask=inside)
        if INT8 == WITH_SUMS:
            sums_ptr = scale_ptr + width // (4 * GROUP_WORDS) * scale_step
            place = sums_place(word // GROUP_WORDS, scale_at, scale_step) + lane
            tl.store(sums_ptr + place, sums.to(tl.float32, bitcast=True), mask=inside & (lane < 2))
        scale_at += word // GROUP_WORDS * scale_step
        tl.store(scale_ptr + scale_at, scale, mask=inside & (lane == 0))


@triton.jit
def parts_of_sums(sums, scale):
    """The words of ``Int8Rows.sums`` of groups: coarse parts in lane 0, fine ones in lane 1, to be
    stored from there. One element a group would be exchanged in shared memory. ``sums`` int32
    [A, GROUPS, 16] of the numbers of int8 words, ``scale`` [A, GROUPS]."""
    lane = tl.arange(0, GROUP_WORDS)[None, None, :]
    low = tl.sum(tl.where(lane < GROUP_WORDS // 2, sums, 0), 2)
    top = tl.sum(sums, 2) - low
    coarse, fine = in_two_parts(low.to(tl.float32) * scale, top.to(tl.float32) * scale)
    return tl.where(lane == 0, coarse[:, :, None], fine[:, :, None])


@triton.jit
def sums_place(group, row, step):
    """Where the sums of a group of a row stand in ``Int8Rows.sums``; ``step``: rows to a unit."""
    return ((group // UNIT_GROUPS * step + row) * UNIT_GROUPS + group % UNIT_GROUPS) * 2

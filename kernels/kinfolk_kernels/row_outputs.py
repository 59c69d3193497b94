"""What kernels between the matrices write: rows in a float type, rows in int8, or both.

The int8 form is that of ``int8_rows``, of the numbers before they are rounded to the float type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kinfolk_kernels.int8_rows import GROUP, Int8Rows

WORDS = tl.constexpr(GROUP // 4)
"""Int8 words in a group."""

WHOLE = tl.constexpr(12582912.0)
"""1.5 * 2^23: a small number added to it is rounded half to even, and stands in the low bits."""


@dataclass(frozen=True, slots=True)
class RowOutputs:
    """R rows of K numbers, K a multiple of 64 for int8; either may be ``None``."""

    values: torch.Tensor | None
    int8: Int8Rows | None

    @staticmethod
    def make(
        rows: int, width: int, dtype: torch.dtype | None, int8: bool, device: torch.device
    ) -> RowOutputs:
        """Memory for ``values`` if there is a ``dtype``, and for int8 rows if asked for."""
        values = None if dtype is None else torch.empty(rows, width, dtype=dtype, device=device)
        if not int8:
            return RowOutputs(values, None)
        words = torch.empty(rows, width // 4, dtype=torch.int32, device=device)
        scale = torch.empty(rows, width // GROUP, device=device)
        return RowOutputs(values, Int8Rows(words, scale, torch.empty_like(words)))

    @property
    def arguments(self) -> dict[str, torch.Tensor]:
        """Pointers by name; what is not wanted points at something that is."""
        if self.int8 is not None:
            words, scale, sums = self.int8.words, self.int8.scale, self.int8.sums
        elif self.values is not None:
            words = scale = sums = self.values
        else:
            raise ValueError("a kernel was asked for no output at all")
        return {
            "out_ptr": words if self.values is None else self.values,
            "words_ptr": words,
            "scale_ptr": scale,
            "sums_ptr": sums,
        }

    @property
    def pointers(self) -> dict[str, torch.Tensor]:
        """``arguments`` without sums."""
        return {name: x for name, x in self.arguments.items() if name != "sums_ptr"}

    @property
    def constants(self) -> dict[str, Any]:
        return {"VALUES": self.values is not None, "INT8": self.int8 is not None}


@triton.jit
def columns_of(first, GROUPS: tl.constexpr):
    """[1, GROUPS, 16, 4]: the columns of groups of 64 from ``first``, four to a lane.

    With as many lanes as there are words, everything that is loaded and stored lies in registers as
    it lies in memory, and a group is a matter of 16 lanes of a warp.
    """
    group = tl.arange(0, GROUPS)[None, :, None, None]
    lane = tl.arange(0, WORDS)[None, None, :, None]
    return first + group * (4 * WORDS) + lane * 4 + tl.arange(0, 4)[None, None, None, :]


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
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
):
    """y float32 [A, GROUPS, 16, 4]: columns from ``first`` up to ``width`` of lines that begin at
    ``start`` int64 [A] of the outputs, where ``live`` [A]. For int8 ``first``, ``width`` and
    ``start`` are multiples of 64."""
    GROUPS: tl.constexpr = y.shape[1]
    if VALUES:
        column = columns_of(first, GROUPS)
        inside = live[:, None, None, None] & (column < width)
        at = start[:, None, None, None] + column
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    if INT8:
        lane = tl.arange(0, WORDS)[None, None, :]
        word = first // 4 + tl.arange(0, GROUPS)[None, :, None] * WORDS + lane
        inside = live[:, None, None] & (word < width // 4)
        scale = tl.max(tl.max(tl.abs(y), 3), 2)[:, :, None] / 127.0
        inverse = tl.where(scale > 0, 1.0 / tl.where(scale > 0, scale, 1.0), 0.0)
        q = (y * inverse[:, :, :, None] + WHOLE).to(tl.int32, bitcast=True)
        byte = tl.arange(0, 4)[None, None, None, :]
        words = tl.sum((q & 255) << (8 * byte), 3)
        tl.store(words_ptr + (start // 4)[:, None, None] + word, words, mask=inside)
        scale_at = (start // (4 * WORDS))[:, None, None] + word // WORDS
        scale = tl.broadcast_to(scale, words.shape)
        tl.store(scale_ptr + scale_at, scale, mask=inside & (lane == 0))


@triton.jit
def store_rows(
    y,
    row,
    column,
    inside,
    width,
    out_ptr,
    words_ptr,
    scale_ptr,
    sums_ptr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
):
    """y float32 [ROWS, COLUMNS] of rows ``row`` int64 and columns from ``column``, 0 where not
    ``inside`` [ROWS, COLUMNS]; for int8 both column and COLUMNS are multiples of 64."""
    if VALUES:
        at = row[:, None] * width + column + tl.arange(0, COLUMNS)[None, :]
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    if INT8:
        GROUPS: tl.constexpr = COLUMNS // (4 * WORDS)
        grouped = tl.reshape(y, [ROWS, GROUPS, WORDS, 4])
        scale = tl.max(tl.max(tl.abs(grouped), 3), 2) / 127.0
        inverse = tl.where(scale > 0, 1.0 / tl.where(scale > 0, scale, 1.0), 0.0)
        # Adding 1.5 * 2^23 leaves no bits for a fraction: the sum is rounded half to even.
        q = grouped * inverse[:, :, None, None] + 12582912.0 - 12582912.0
        q = tl.minimum(tl.maximum(q, -127.0), 127.0).to(tl.int32)
        byte = tl.arange(0, 4)[None, None, None, :]
        words = tl.sum((q & 255) << (8 * byte), 3)
        group = column // (4 * WORDS) + tl.arange(0, GROUPS)
        within = group < width // (4 * WORDS)
        mine = tl.max(inside.to(tl.int32), 1) != 0
        mask = mine[:, None] & within[None, :]
        scale_at = row[:, None] * (width // (4 * WORDS)) + group[None, :]
        tl.store(scale_ptr + scale_at, scale, mask=mask)
        word = group[None, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]
        word_at = row[:, None, None] * (width // 4) + word
        tl.store(words_ptr + word_at, words, mask=mask[:, :, None])
        tl.store(sums_ptr + word_at, tl.sum(q, 3), mask=mask[:, :, None])

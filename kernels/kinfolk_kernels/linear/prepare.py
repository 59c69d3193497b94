"""Converts rows to the forms that matrix products read, once for all matrices of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.int8_rows import GROUP_NUMBERS, Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.prepare_kernel import f16_kernel, halves_kernel, int8_kernel

PREPARE_TILE_NUMBERS = 1024
"""Numbers that a program converts at a time."""

F16_TILE = 8192
"""The same for float16; a row that is not longer is read once."""

INT8_TILE = 512
"""The same for int8: four numbers in each lane."""


@dataclass(frozen=True, slots=True)
class HalfRows:
    """Up to 8 T rows of K numbers as pairs of float16, in the order of tensor core operands.

    ``words`` int32 [K / 64, T, 2, 32, 4], see ``halves_kernel``. A row is its numbers in ``words``
    times its ``factor``, float32 [8 T].
    """

    words: torch.Tensor
    factor: torch.Tensor
    rows: int

    @property
    def tiles(self) -> int:
        return int(self.words.shape[1])

    @staticmethod
    def make(rows: int, width: int, device: torch.device) -> HalfRows:
        """Uninitialised memory for ``rows`` rows, in tiles of 8, 16, 32 or 64."""
        tiles = 1 << max(0, (rows - 1).bit_length() - 3)
        words = torch.empty(width // 64, tiles, 2, 32, 4, dtype=torch.int32, device=device)
        return HalfRows(words, torch.empty(8 * tiles, device=device), rows)


@dataclass(frozen=True, slots=True)
class F16Rows:
    """R rows of K numbers as float16 in the order of ``gemm_f16_kernel``.

    ``numbers`` float16 [R, W], W the next multiple of 128; see ``f16_kernel``. A row is its numbers
    in ``numbers`` times its ``factor``, float32 [R].
    """

    numbers: torch.Tensor
    factor: torch.Tensor

    @staticmethod
    def make(rows: int, width: int, device: torch.device) -> F16Rows:
        """Uninitialised rows."""
        numbers = torch.empty(rows, -(-width // 128) * 128, dtype=torch.float16, device=device)
        return F16Rows(numbers, torch.empty(rows, device=device))


def quantize_rows(x: torch.Tensor, out: Int8Rows) -> Launch:
    """The launch that converts x [M, K] to int8; any row stride, K a multiple of 64."""
    rows, width = x.shape
    return Launch(
        int8_kernel,
        (rows, -(-width // INT8_TILE)),
        {
            "x_ptr": x,
            "words_ptr": out.words,
            "scale_ptr": out.scale,
            "scale_step": out.scale.stride(0),
            "width": width,
            "x_row": x.stride(0),
        },
        {"GROUPS": INT8_TILE // GROUP_NUMBERS},
    )


def halve_rows(x: torch.Tensor, out: HalfRows) -> Launch:
    """The launch that converts x [M, K] to float16; any row stride, K a multiple of 64."""
    return Launch(
        halves_kernel,
        (8 * out.tiles,),
        {
            "x_ptr": x,
            "words_ptr": out.words,
            "scale_ptr": out.factor,
            "rows": x.shape[0],
            "x_row": x.stride(0),
        },
        {"K": x.shape[1], "NT": out.tiles, "COLUMNS": 2 * PREPARE_TILE_NUMBERS},
    )


def round_rows(x: torch.Tensor, out: F16Rows) -> Launch:
    """The launch that converts x [M, K] to ``F16Rows``; any row stride, K a multiple of 64."""
    rows, room = out.numbers.shape
    return Launch(
        f16_kernel,
        (rows, -(-room // F16_TILE)),
        {
            "x_ptr": x,
            "numbers_ptr": out.numbers,
            "factor_ptr": out.factor,
            "x_row": x.stride(0),
        },
        {
            "K": x.shape[1],
            "COLUMNS": min(F16_TILE, 1 << (room - 1).bit_length()),
        },
        warps=8,
    )


def int8_rows(x: torch.Tensor) -> Int8Rows:
    """x [M, K] as int8."""
    rows = Int8Rows.make(x.shape[0], x.shape[1], x.device)
    quantize_rows(x, rows).run()
    return rows


def half_rows(x: torch.Tensor) -> HalfRows:
    """x [M, K], M <= 64, as float16."""
    rows = HalfRows.make(x.shape[0], x.shape[1], x.device)
    halve_rows(x, rows).run()
    return rows


def f16_rows(x: torch.Tensor) -> F16Rows:
    """x [M, K] as float16 in the order of ``gemm_f16``."""
    rows = F16Rows.make(x.shape[0], x.shape[1], x.device)
    round_rows(x, rows).run()
    return rows

"""Converts rows to the forms that matrix products read, once for all matrices of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.int8_rows import GROUP_NUMBERS, Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.prepare_kernel import f16_kernel, int8_kernel

F16_TILE = 8192
"""Numbers that a program converts to float16 at a time; a row that is not longer is read once."""

APART = 192
"""Up to this many programs of a launch, the tiles of a row are divided among programs. Each program
then reads the whole row for its factor."""

INT8_TILE = 512
"""The same for int8: four numbers in each lane."""

WARP_ROW_TILES = (1, 2, 3, 4)
"""Numbers of tiles of eight rows that ``gemm_mma`` is compiled for, by warps alone."""

WARPGROUP_ROW_TILES = (8, 12, 16)
"""The same, by four warps together: for more rows than warps alone multiply."""

MAX_PART_ROWS = 8 * WARPGROUP_ROW_TILES[-1]
"""Most rows of a part."""


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
        shape = (parts, -(-width // 128), 4, tiles, 256)
        numbers = torch.empty(shape, dtype=torch.float16, device=device)
        return MmaRows(numbers, torch.empty(rows, device=device))


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


def round_rows(x: torch.Tensor, out: F16Rows | MmaRows) -> Launch:
    """The launch that converts x [M, K] to float16; any row stride, K a multiple of 64."""
    rows, room = x.shape[0], -(-x.shape[1] // 128) * 128
    columns = min(F16_TILE, 1 << (room - 1).bit_length())
    tiles = -(-room // columns)
    own = 1 if rows * tiles <= APART else tiles
    return Launch(
        f16_kernel,
        (rows, tiles // own),
        {
            "x_ptr": x,
            "numbers_ptr": out.numbers.view(torch.int32),
            "factor_ptr": out.factor,
            "x_row": x.stride(0),
        },
        {
            "K": x.shape[1],
            "TILES": out.tiles if isinstance(out, MmaRows) else 0,
            "WARPGROUPS": isinstance(out, MmaRows) and out.warpgroups,
            "COLUMNS": columns,
            "OWN": own,
        },
        warps=8,
    )


def int8_rows(x: torch.Tensor) -> Int8Rows:
    """x [M, K] as int8."""
    rows = Int8Rows.make(x.shape[0], x.shape[1], x.device)
    quantize_rows(x, rows).run()
    return rows


def f16_rows(x: torch.Tensor) -> F16Rows:
    """x [M, K] as float16 in the order of ``gemm_f16``."""
    rows = F16Rows.make(x.shape[0], x.shape[1], x.device)
    round_rows(x, rows).run()
    return rows


def mma_rows(x: torch.Tensor) -> MmaRows:
    """x [M, K] as float16 in the order of ``gemm_mma``."""
    rows = MmaRows.make(x.shape[0], x.shape[1], x.device)
    round_rows(x, rows).run()
    return rows

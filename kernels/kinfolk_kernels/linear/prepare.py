"""Converts rows to the forms that matrix products read, once for all matrices of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.int8_rows import GROUP_NUMBERS, Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.prepare_kernel import NO_ACTIVATION, f16_kernel, int8_kernel
from kinfolk_kernels.mma_rows import MmaRows
from kinfolk_kernels.row_outputs import int8_kind

F16_TILE = 8192
"""Numbers that a program converts to float16 at a time; a row that is not longer is read once."""

WARP_NUMBERS = 256
"""Of them, numbers of a warp; long tiles have more."""

APART = 192
"""Up to this many programs of a launch, the tiles of a row are divided among programs. Each program
then reads the whole row for its factor."""

INT8_TILE = 512
"""The same for int8: four numbers in each lane."""


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
        {"GROUPS": INT8_TILE // GROUP_NUMBERS, "INT8": int8_kind(out)},
    )


def round_rows(
    x: torch.Tensor,
    out: F16Rows | MmaRows,
    up: torch.Tensor | None = None,
    activation: int = NO_ACTIVATION.value,
) -> Launch:
    """The launch that converts x [M, K] to float16; any row stride, K a multiple of 64. With ``up``
    of the same strides it converts activation(x) * up."""
    rows, room = x.shape[0], -(-x.shape[1] // 128) * 128
    columns = min(F16_TILE, 1 << (room - 1).bit_length())
    tiles = -(-room // columns)
    own = 1 if rows * tiles <= APART else tiles
    return Launch(
        f16_kernel,
        (rows, tiles // own),
        {
            "x_ptr": x,
            "up_ptr": x if up is None else up,
            "numbers_ptr": out.numbers.view(torch.int32),
            "factor_ptr": out.factor,
            "x_row": x.stride(0),
        },
        {
            "K": x.shape[1],
            "TILES": out.tiles if isinstance(out, MmaRows) else 0,
            "COLUMNS": columns,
            "OWN": own,
            "ACTIVATION": activation,
        },
        warps=max(1, min(8, columns // WARP_NUMBERS)),
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

"""Matrices times 2 to 32 int8 rows on the tensor cores of sm_90, in CUDA C++.

The numbers are those of ``gemm_int8``. There, a warp loads weights to registers, a pair of groups
ahead; here it copies them to shared memory, further ahead and before the launch before has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from kinfolk_kernels.cuda_source import MAX_SHARED, CudaLaunch
from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.linear.gemm_f16 import LEAST_PAIRS, MULTIPROCESSORS
from kinfolk_kernels.linear.gemm_mma import HEADER_BYTES, MmaTile, launch_of, tiles_of
from kinfolk_kernels.planes import EIGHT_BITS, LAYOUTS, Planes

SOURCE = Path(__file__).with_suffix(".cu")

UNIT_COLUMNS = 256
"""Columns that a warp multiplies at a time; shares of a tile count in them."""

LEAST_UNITS = LEAST_PAIRS // 2
MAX_WEIGHT_STAGES = 4
X_STAGES = 3


def gemm_mma_int8(
    matrices: Sequence[Planes],
    x: Int8Rows,
    outs: Sequence[torch.Tensor],
    tile: MmaTile | None = None,
) -> CudaLaunch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T, 2 <= M <= 32, for up to four matrices of
    K columns."""
    tile = tile or tile_for(matrices)
    row_tiles = -(-outs[0].shape[0] // 8)
    stage = max(_stage_bytes(planes.format) for planes in matrices)
    others = _other_bytes(tile, row_tiles)
    weight_bytes = min(MAX_WEIGHT_STAGES, (MAX_SHARED - others) // tile.warps // stage) * stage
    return launch_of(
        SOURCE,
        matrices,
        outs,
        tile,
        (x.words, x.scale),
        row_tiles,
        {"X_STAGES": X_STAGES, "WEIGHT_BYTES": weight_bytes},
        others + tile.warps * weight_bytes,
    )


def tile_for(matrices: Sequence[Planes], row_warps: int = 6, column_warps: int = 2) -> MmaTile:
    """The tile for the shapes of the matrices."""
    units = -(-matrices[0].columns // UNIT_COLUMNS)
    tiles = [tiles_of(planes, row_warps) for planes in matrices]

    def rounds(count: int) -> int:
        """The next multiple of the units that a program processes at a time."""
        return -(-count // column_warps) * column_warps

    share = rounds(max(min(LEAST_UNITS, units), sum(tiles) * units // MULTIPROCESSORS))
    while sum(-(-count * units // share) for count in tiles) > MULTIPROCESSORS:
        share += column_warps
    parts, span = -(-units // share), units
    if parts * sum(tiles) <= MULTIPROCESSORS:
        # A program works on one tile only: tiles are divided into parts of nearly equal length.
        share = rounds(-(-units // parts))
        span = -(-units // share) * share
    return MmaTile(share, span, row_warps, column_warps)


def _stage_bytes(format: str) -> int:
    """``Stage::BYTES`` of the kernel."""
    layout = LAYOUTS[format]
    scales = 256 if layout.number == EIGHT_BITS else 512
    return 4096 + 1024 * layout.bits + scales + (0 if layout.block == 32 else 128)


def _other_bytes(tile: MmaTile, row_tiles: int) -> int:
    """Shared memory for barriers, x, and the sums that column warps leave."""
    x = X_STAGES * tile.column_warps * row_tiles * (2048 + 128)
    sums = (tile.column_warps - 1) * tile.row_warps * row_tiles * 1024
    return HEADER_BYTES + x + sums

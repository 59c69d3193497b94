"""Matrices times 2 to 32 int8 rows on the tensor cores of sm_90, in CUDA C++.

The numbers are those of ``gemm_int8``. There, a warp loads weights to registers, a pair of groups
ahead; here it copies them to shared memory, further ahead and before the launch before has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kinfolk_kernels.cuda_source import MAX_SHARED, CudaLaunch
from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.linear.gemm_f16 import LEAST_PAIRS, MULTIPROCESSORS
from kinfolk_kernels.linear.gemm_mma import Described, MmaTile, launch_of, tile_of, tiles_of
from kinfolk_kernels.planes import EIGHT_BITS, LAYOUTS, Planes
from kinfolk_kernels.tensor_map import Boxes, TensorMap, tensor_map

SOURCE = Path(__file__).with_suffix(".cu")

UNIT_COLUMNS = 256
"""Columns that a warp multiplies at a time."""

WITH_MINIMA = ("Q4_K", "Q5_K")
"""Formats whose minima are multiplied with sums of x."""

LEAST_UNITS = LEAST_PAIRS // 2
UPPER_BITS = 0x80808080
"""The upper bit of each byte of a word."""

STAGE_GROUPS = 8
"""Groups of four rows of a warp."""

BLOCK_BYTES = 128
"""Of a group's words, stored side by side in shared memory."""

STAGES = 4
"""Most stages of a warp's weights."""

LEAST_STAGES = 2
"""Least stages of a warp's weights, and of x: one is copied while another is read."""

Arrangement = tuple[int, int, int]
"""Warps of different rows, warps of different columns, stages of x."""

USUAL: Arrangement = (4, 3, 4)
TALL: Arrangement = (6, 2, 4)
"""For long launches of up to 8 or of 25 to 32 rows, and for 17 to 24 rows where programs share
tiles. With fewer warps of different columns, a tile has more parts to be summed, and x is copied
less often. Measured in steps: the same launch again and again finds its code in the cache
(``benchmarks/NOTES.md``)."""

FOUR_TILES: Arrangement = (4, 2, 4)
"""For 25 to 32 rows in other launches. Three warps of different columns leave no room for
stages."""

LONG_ROUNDS = 8
"""A launch with more rounds of a program in the usual arrangement is long."""


@dataclass(frozen=True, slots=True)
class MmaInt8Tile(MmaTile):
    """The same for this kernel: ``share`` and ``span`` count in units of ``UNIT_COLUMNS``. All
    warps of the same columns share ``x_stages`` stages of x."""

    x_stages: int = USUAL[2]


def gemm_mma_int8(
    matrices: Sequence[Planes],
    x: Int8Rows,
    outs: Sequence[torch.Tensor],
    tile: MmaInt8Tile | None = None,
) -> CudaLaunch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T, 2 <= M <= 32, for up to four matrices of
    K columns."""
    row_tiles = -(-outs[0].shape[0] // 8)
    tile = tile or tile_for(matrices, row_tiles)
    others = _other_bytes(matrices, tile, row_tiles)
    weight_bytes = weight_stages(matrices, tile, row_tiles) * _largest_stage(matrices)
    return launch_of(
        SOURCE,
        matrices,
        outs,
        tile,
        (x.words, x.scale),
        row_tiles,
        {"X_STAGES": tile.x_stages, "WEIGHT_BYTES": weight_bytes, "MOST_STAGES": tile.stages},
        others + tile.warps * weight_bytes,
        UPPER_BITS,
        described=Maps,
        maps=(_units(x, 8 * row_tiles),),
    )


def tile_for(matrices: Sequence[Planes], row_tiles: int) -> MmaInt8Tile:
    """The tile for the shapes of the matrices and ``row_tiles`` tiles of eight rows of x."""
    return fitted(tile_in(matrices, *arrangement_for(matrices, row_tiles)), matrices, row_tiles)


def arrangement_for(matrices: Sequence[Planes], row_tiles: int) -> Arrangement:
    """The fastest arrangement, as measured for a 27B."""
    row_warps, column_warps, _ = USUAL
    units = -(-matrices[0].columns // UNIT_COLUMNS) * sum(tiles_of(m, 1) for m in matrices)
    long = units > LONG_ROUNDS * MULTIPROCESSORS * row_warps * column_warps
    if row_tiles == 3:
        usual = tile_in(matrices, *USUAL)
        return USUAL if usual.share == usual.span else TALL
    if row_tiles == 2:
        return USUAL
    return TALL if long else USUAL if row_tiles == 1 else FOUR_TILES


def fitted(tile: MmaInt8Tile, matrices: Sequence[Planes], row_tiles: int) -> MmaInt8Tile:
    """The tile with as many stages of x as leave room for two of weights. Raises ``ValueError`` if
    not even two do."""
    while weight_stages(matrices, tile, row_tiles) < LEAST_STAGES:
        if tile.x_stages == LEAST_STAGES:
            raise ValueError(f"no room for {tile} with {row_tiles} tiles of rows")
        tile = replace(tile, x_stages=tile.x_stages - 1)
    return tile


def tile_in(
    matrices: Sequence[Planes], row_warps: int, column_warps: int, x_stages: int
) -> MmaInt8Tile:
    """The tile of an arrangement."""
    tile = tile_of(matrices, row_warps, column_warps, UNIT_COLUMNS, LEAST_UNITS)
    return MmaInt8Tile(tile.share, tile.span, row_warps, column_warps, STAGES, x_stages)


def weight_stages(matrices: Sequence[Planes], tile: MmaInt8Tile, row_tiles: int) -> int:
    """Stages of a warp's weights for which there is shared memory."""
    room = (MAX_SHARED - _other_bytes(matrices, tile, row_tiles)) // tile.warps
    return min(tile.stages, room // _largest_stage(matrices))


def stage_bytes(format: str) -> int:
    """``Stage::BYTES`` of the kernel."""
    layout = LAYOUTS[format]
    scales = 256 if layout.number == EIGHT_BITS else 512
    return 4096 + 1024 * layout.bits + scales + (0 if layout.block == 32 else 128)


def _largest_stage(matrices: Sequence[Planes]) -> int:
    return max(stage_bytes(planes.format) for planes in matrices)


def _other_bytes(matrices: Sequence[Planes], tile: MmaInt8Tile, row_tiles: int) -> int:
    """Shared memory for barriers, x, and the sums that column warps leave."""
    unit = 2048 + 128
    if any(planes.format in WITH_MINIMA for planes in matrices):
        unit += 256
    x = tile.x_stages * tile.column_warps * row_tiles * unit
    sums = (tile.column_warps - 1) * tile.row_warps * row_tiles * 1024
    barriers = 8 * (2 * tile.x_stages * tile.column_warps + tile.stages * tile.warps)
    return -(-barriers // 128) * 128 + x + sums


class Maps(Described):
    """A matrix of whose planes a warp copies what it needs of a unit, or of half a unit."""

    _fields_ = (
        ("q", TensorMap),
        ("high", TensorMap),
        ("scales", TensorMap),
        ("supers", TensorMap),
        ("y", ctypes.c_void_p),
        ("rows", ctypes.c_int),
        ("end", ctypes.c_int),
        ("padding", ctypes.c_char * 48),  # to a multiple of what maps are aligned to
    )

    @classmethod
    def of(cls, planes: Planes, out: torch.Tensor, end: int) -> Maps:
        layout = LAYOUTS[planes.format]
        groups = 2 if layout.number == EIGHT_BITS else 4
        return cls(
            _blocks(planes.q, 4),
            _blocks(planes.high, layout.bits),
            _rows(planes.scales, groups),
            _rows(planes.supers, groups if layout.block == 32 else 1),
            out.data_ptr(),
            planes.rows,
            end,
        )


def _blocks(plane: torch.Tensor | None, blocks: int) -> TensorMap:
    """Boxes of ``blocks`` blocks of ``STAGE_GROUPS`` groups of four rows."""
    if plane is None:
        return TensorMap()
    groups, nbytes = plane.shape[0], plane.shape[1] * 16
    words = BLOCK_BYTES // 4
    sizes, strides = (words, groups, nbytes // BLOCK_BYTES), (nbytes, BLOCK_BYTES)
    return tensor_map(plane, Boxes(sizes, strides, (words, STAGE_GROUPS, blocks), swizzled=True))


def _rows(plane: torch.Tensor | None, words: int) -> TensorMap:
    """Boxes of ``words`` words of ``STAGE_GROUPS`` groups of four rows."""
    if plane is None:
        return TensorMap()
    groups, width = plane.shape[0], plane.shape[1]
    return tensor_map(plane, Boxes((4 * width, groups), (16 * width,), (4 * words, STAGE_GROUPS)))


def _units(x: Int8Rows, rows: int) -> TensorMap:
    """Boxes of four groups of ``rows`` rows of x: 64 bytes of each row, group by group."""
    count, nbytes = x.words.shape[0], 4 * x.words.shape[1]
    return tensor_map(x.words, Boxes((16, count, nbytes // 64), (nbytes, 64), (16, rows, 4)))

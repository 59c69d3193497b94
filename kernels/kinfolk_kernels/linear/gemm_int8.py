"""Matrices times 2 to 32 int8 rows on tensor cores, bound by the bandwidth of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_int8_kernel import gemm_int8_kernel
from kinfolk_kernels.linear.segments import Segments, counters
from kinfolk_kernels.planes import Planes

WARP_ROWS = 32
"""Rows of a matrix that a warp computes."""

PAIR = 128
"""Columns that a warp multiplies at a time."""

MAX_DEVICE_WARPS = 1584
"""Warps that a large device runs at a time: the work is divided among at most as many."""

LEAST_PAIRS = 4
"""Least pairs of groups of a warp: its epilogue takes as long as two or three."""

INT8_REGISTERS = 168
"""Most registers of a thread for up to 16 rows, so that twelve warps fit a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Int8Tile:
    """The work of a program of one warp: ``share`` pairs of groups, which may continue from one
    tile of 32 rows into the next. A tile counts as ``span`` pairs, of which the last ones may lie
    beyond the columns."""

    share: int
    span: int


def gemm_int8(
    matrices: Sequence[Planes],
    x: Int8Rows,
    outs: Sequence[torch.Tensor],
    tile: Int8Tile | None = None,
    *,
    asm: bool = True,
) -> Launch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T, M <= 32, for up to four matrices of K
    columns."""
    columns, rows = matrices[0].columns, outs[0].shape[0]
    tile = tile or tile_for(matrices)
    share, span = tile.share, tile.span
    segments = Segments.make(matrices, outs, lambda p: -(-_tiles(p) * span // share))
    eights = -(-rows // 8)
    parts = 2 * segments.programs * eights * 8 * WARP_ROWS
    return Launch(
        gemm_int8_kernel,
        (segments.programs,),
        {
            **segments.arguments,
            "x_ptr": x.words,
            "d_ptr": x.scale,
            "part_ptr": torch.empty(parts, device=outs[0].device),
            "done_ptr": counters(outs[0].device, segments.programs),
            "rows": rows,
        },
        {
            **segments.constants,
            "K": columns,
            "NT": eights,
            "SHARE": share,
            "SPAN": span,
            "MASKED": columns % PAIR != 0,
            "ASM": asm,
        },
        warps=1,
        registers=INT8_REGISTERS if eights <= 2 else None,
        early=False,
    )


def tile_for(matrices: Sequence[Planes]) -> Int8Tile:
    """The tile for the shapes of the matrices."""
    pairs = -(-matrices[0].columns // PAIR)
    tiles = [_tiles(planes) for planes in matrices]
    share = max(LEAST_PAIRS, sum(tiles) * pairs // MAX_DEVICE_WARPS)
    while sum(-(-count * pairs // share) for count in tiles) > MAX_DEVICE_WARPS:
        share += 1
    parts = -(-pairs // share)
    if parts * sum(tiles) <= MAX_DEVICE_WARPS:
        # A program works on one tile only: tiles are divided into parts of nearly equal length.
        share = -(-pairs // parts)
        return Int8Tile(share, parts * share)
    return Int8Tile(share, pairs)


def _tiles(planes: Planes) -> int:
    return -(-planes.rows // WARP_ROWS)

"""Matrices times 2 to 32 rows of int8 on the matrix unit, bound by the reading of the matrices."""

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
"""Columns that a warp computes at a time."""

MAX_DEVICE_WARPS = 1584
"""Warps that a large device runs at a time: what there is to do is shared out among no more."""

LEAST_PAIRS = 4
"""Of a warp: what it does at its end takes as long as two or three."""

INT8_REGISTERS = 168
"""Of a thread with up to 16 rows, so that twelve warps fit a processor."""


@dataclass(frozen=True, slots=True)
class Int8Tile:
    """What a program of one warp takes: ``share`` pairs of groups, from one tile of 32 rows on to
    the next. A tile has ``span`` of them, or fewer if its columns end in the last share."""

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
    """outs[i] [M, N_i] = x W_i^T, M <= 32, for up to four matrices of K columns."""
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
    """By shapes alone."""
    pairs = -(-matrices[0].columns // PAIR)
    tiles = [_tiles(planes) for planes in matrices]
    share = max(LEAST_PAIRS, sum(tiles) * pairs // MAX_DEVICE_WARPS)
    while sum(-(-count * pairs // share) for count in tiles) > MAX_DEVICE_WARPS:
        share += 1
    parts = -(-pairs // share)
    if parts * sum(tiles) <= MAX_DEVICE_WARPS:
        # Equal parts of one tile each: as many as the longest of them asks for.
        share = -(-pairs // parts)
        return Int8Tile(share, parts * share)
    return Int8Tile(share, pairs)


def _tiles(planes: Planes) -> int:
    return -(-planes.rows // WARP_ROWS)

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

MAX_ROWS = 32
WARP_ROWS = 32
"""Rows of a matrix that a warp computes."""

PAIR = 128
"""Columns that a warp computes at a time."""

WARPS = 1584
"""Warps that a large device runs at a time: columns are split as long as there are no more."""

REGISTERS = {1: 128, 2: 168}
"""Of a thread, by tiles of eight rows, so that sixteen or twelve warps fit a processor."""


@dataclass(frozen=True, slots=True)
class Int8Tile:
    """``warps`` of a program take 32 rows each, ``split`` programs share the columns; ``registers``
    of a thread at most, ``None`` = by the number of rows."""

    warps: int = 4
    split: int = 1
    registers: int | None = None


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
    segments = Segments.make(matrices, outs, WARP_ROWS * tile.warps)
    eights = -(-rows // 8)
    part, done = outs[0], outs[0]
    if tile.split > 1:
        device = outs[0].device
        size = tile.split * segments.programs * eights * 8 * WARP_ROWS * tile.warps
        part = torch.empty(size, device=device)
        done = counters(device, segments.programs)
    return Launch(
        gemm_int8_kernel,
        (segments.programs, tile.split),
        {
            **segments.arguments,
            "x_ptr": x.words,
            "d_ptr": x.scale,
            "part_ptr": part,
            "done_ptr": done,
            "rows": rows,
        },
        {
            **segments.constants,
            "K": columns,
            "NT": eights,
            "WARPS": tile.warps,
            "SPLIT": tile.split,
            "MASKED": columns % PAIR != 0,
            "ASM": asm,
        },
        tile.warps,
        registers=tile.registers or REGISTERS.get(eights),
        early=False,
    )


def tile_for(matrices: Sequence[Planes], warps: int = 4) -> Int8Tile:
    """By shapes alone."""
    programs = sum(-(-planes.rows // (warps * WARP_ROWS)) for planes in matrices)
    pairs = -(-matrices[0].columns // PAIR)
    most = max(1, min(WARPS // (warps * programs), pairs // 4))
    # Equal parts: as many as the longest of them asks for.
    return Int8Tile(warps, -(-pairs // -(-pairs // most)))

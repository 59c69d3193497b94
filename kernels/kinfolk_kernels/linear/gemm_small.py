"""Matrices times up to 64 float16 rows on tensor cores, bound by the bandwidth of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.halves_kernel import gemm_small_kernel
from kinfolk_kernels.linear.prepare import HalfRows
from kinfolk_kernels.linear.segments import Segments, counters
from kinfolk_kernels.planes import Planes

MAX_SMALL_GEMM_ROWS = 64
SMALL_TILE_ROWS = 32
"""Rows of a matrix that a program computes."""

PROGRAMS = 600
"""Programs that fill a large device: the columns are split until there are at least as many."""


@dataclass(frozen=True, slots=True)
class SmallTile:
    """The columns of 32 rows are divided among ``split`` programs of ``warps`` warps; ``tiles``
    groups of 64 columns are loaded at a time."""

    warps: int = 4
    split: int = 1
    tiles: int = 1


def gemm_small(
    matrices: Sequence[Planes],
    x: HalfRows,
    outs: Sequence[torch.Tensor],
    tile: SmallTile | None = None,
    *,
    asm: bool = True,
) -> Launch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T, M <= 64, for up to four matrices of K
    columns."""
    columns = matrices[0].columns
    tile = tile or tile_for(matrices)
    segments = Segments.make(matrices, outs, lambda planes: -(-planes.rows // SMALL_TILE_ROWS))
    part, done = outs[0], outs[0]
    if tile.split > 1:
        device = outs[0].device
        part = torch.empty(
            tile.split, segments.programs, x.tiles, SMALL_TILE_ROWS, 8, device=device
        )
        done = counters(device, segments.programs)
    return Launch(
        gemm_small_kernel,
        (segments.programs, tile.split),
        {
            **segments.arguments,
            "x_ptr": x.words,
            "factor_ptr": x.factor,
            "part_ptr": part,
            "done_ptr": done,
            "rows": x.rows,
        },
        {
            **segments.constants,
            "K": columns,
            "NT": x.tiles,
            "WARPS": tile.warps,
            "SPLIT": tile.split,
            "TILES": tile.tiles,
            "MASKED": columns // 64 % (tile.warps * tile.split * tile.tiles) != 0,
            "ASM": asm,
        },
        tile.warps,
        early=False,
    )


def tile_for(matrices: Sequence[Planes]) -> SmallTile:
    """The tile for the shapes of the matrices."""
    programs = sum(-(-planes.rows // SMALL_TILE_ROWS) for planes in matrices)
    groups = matrices[0].columns // 64
    warps = min(4, 1 << max(0, groups.bit_length() - 2))
    split = 1
    while programs * split < PROGRAMS and groups // (2 * split * warps) >= 4:
        split *= 2
    return SmallTile(warps, split, 2 if groups // (split * warps) >= 2 else 1)

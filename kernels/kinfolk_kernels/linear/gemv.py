"""Matrices times a row of int8, bound by the reading of the matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemv_kernel import gemv_kernel
from kinfolk_kernels.linear.segments import Segments
from kinfolk_kernels.planes import INTERLEAVE, Planes

WARP = 32

PROGRAMS = 4224
"""Programs of a warp that a large device runs at a time."""


@dataclass(frozen=True, slots=True)
class GemvTile:
    """``groups`` of four rows a program at a time, ``rounds`` times; ``warps`` on the same rows,
    ``tiles`` loaded at a time."""

    groups: int = 1
    warps: int = 1
    tiles: int = 1
    rounds: int = 1


def gemv(
    matrices: Sequence[Planes],
    x: Int8Rows,
    outs: Sequence[torch.Tensor],
    tile: GemvTile | None = None,
    *,
    asm: bool = True,
) -> Launch:
    """outs[i] [1, N_i] = x W_i^T for up to four matrices of K columns."""
    columns = matrices[0].columns
    tile = tile or tile_for(matrices)
    segments = Segments.make(matrices, outs, INTERLEAVE * tile.groups * tile.rounds)
    lanes = WARP * tile.warps
    return Launch(
        gemv_kernel,
        (segments.programs,),
        {**segments.arguments, "x_ptr": x.words, "d_ptr": x.scale},
        {
            **segments.constants,
            "K": columns,
            "NR": tile.groups,
            "ROUNDS": tile.rounds,
            "LANES": lanes,
            "TILES": tile.tiles,
            "MASKED": any(_ragged(planes, tile, lanes) for planes in matrices),
            "ASM": asm,
        },
        tile.warps,
        early=False,
    )


def _ragged(planes: Planes, tile: GemvTile, lanes: int) -> bool:
    """Whether some loads of a launch would leave the matrix."""
    share = 4 if planes.format == "Q8_0" else 2
    uneven = planes.columns // 64 * share % (lanes * tile.tiles) != 0
    return uneven or -(-planes.rows // INTERLEAVE) % tile.groups != 0


def tile_for(matrices: Sequence[Planes]) -> GemvTile:
    """By shapes alone: few rows are shared by two warps, so that enough bytes are on their way; of
    many a program takes more than one group, so that all programs run at a time and end together.
    """
    rows = sum(planes.rows for planes in matrices)
    lanes = matrices[0].columns // 32
    if rows >= 65536:
        return GemvTile(groups=2)
    if rows >= 8192 or lanes <= WARP:
        return GemvTile(rounds=-(-rows // (INTERLEAVE * PROGRAMS)))
    return GemvTile(warps=2)

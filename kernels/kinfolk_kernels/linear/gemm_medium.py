"""Matrices times 65 to 512 float16 rows on tensor cores, unpacked on the way to them.

A tile of 256 rows of a matrix is multiplied with 128 rows of x by one program, which fills a
multiprocessor. Tiles seldom divide evenly among the multiprocessors of a device: the first tiles
have one program each, and the columns of the last ones are split among several, whose sums a second
launch adds. So what a row of y depends on: its row of x, the matrices of the launch, and how many
tiles the rows of x have; not its place among the rows, nor the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_medium_kernel import gemm_medium_kernel, sum_parts_kernel
from kinfolk_kernels.linear.prepare import OperandRows
from kinfolk_kernels.linear.segments import ARGUMENTS, Segments
from kinfolk_kernels.planes import INTERLEAVE, Planes

MAX_MEDIUM_GEMM_ROWS = 512
"""With more rows, the time of ``gemm_large`` to write numbers and read them again counts less than
the multiplications that it does faster."""

MULTIPROCESSORS = 132
"""Of a large device: the work is divided among as many programs."""

MULTIPROCESSOR_WARPS = 8
"""Warps that a multiprocessor runs at a time: a lane has up to 255 registers."""

COLUMN_PARTS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
"""The numbers of programs that the columns of a tile may be split among."""

PROGRAM_STEPS, STORE_STEPS, SUM_STEPS, SUM_PART_STEPS = 4, 3, 4, 0.075
"""Estimated costs in steps of 64 columns, 0.6 us: of the start and end of a program, of storing a
part, of the launch that adds parts, and of each part in it."""

SUM_ROWS = 8
"""Rows of x that a program adds parts for."""


@dataclass(frozen=True, slots=True)
class MediumTile:
    """A program of ``warps`` warps multiplies ``rows`` rows of a matrix, 16 or 32 a warp, with
    ``batch`` rows of x, and loads ``stages - 1`` steps of 64 columns ahead."""

    rows: int = 256
    batch: int = 128
    warps: int = 8
    stages: int = 3


IN_REGISTERS = MediumTile()
"""For devices whose tensor cores take the left operand of four warps from registers: sm_90."""

IN_SHARED_MEMORY = MediumTile(128, 64, 4, 2)
"""For other devices: 99 KB of shared memory and fewer products a program."""


@dataclass(frozen=True, slots=True)
class Division:
    """The first ``whole`` tiles of a matrix have one program for each tile of x, the columns of the
    others are split among ``parts``."""

    whole: int
    parts: int = 1


def gemm_medium(
    matrices: Sequence[Planes],
    x: OperandRows,
    outs: Sequence[torch.Tensor],
    tile: MediumTile | None = None,
    division: Division | None = None,
    *,
    asm: bool = True,
) -> list[Launch]:
    """The launches that compute outs[i] [M, N_i] = x W_i^T for up to four matrices of K columns.

    x is padded to a multiple of the tile's ``batch``; outs are contiguous.
    """
    columns, device = matrices[0].columns, outs[0].device
    tile = tile or tile_for(device)
    segments = Segments.make(matrices, outs, lambda planes: -(-planes.rows // tile.rows))
    x_tiles = x.half.shape[0] // tile.batch
    if division is None:
        slots = MULTIPROCESSORS * MULTIPROCESSOR_WARPS // tile.warps
        division = division_for(segments.programs, x_tiles, columns // 64, slots)
    whole, parts = division.whole, division.parts
    split = (segments.programs - whole) * x_tiles
    part = torch.empty(split * parts, tile.batch * tile.rows, device=device) if split else x.factor
    shared = {
        "factor_ptr": x.factor,
        "part_ptr": part,
        "rows": x.rows,
        "x_tiles": x_tiles,
        "whole": whole,
    }
    shape = {
        "BM": tile.rows,
        "BN": tile.batch,
        "WARPS": tile.warps,
        "QUADS": all(planes.rows % INTERLEAVE == 0 for planes in matrices),
    }
    product = Launch(
        gemm_medium_kernel,
        (whole * x_tiles + split * parts,),
        {**segments.arguments, **shared, "x_ptr": x.half, "parts": parts},
        {
            **segments.constants,
            **shape,
            "K": columns,
            "STAGES": tile.stages,
            "ASM": asm,
        },
        tile.warps,
        tile.stages,
        early=False,
    )
    if not split:
        return [product]
    results = {name: segments.arguments[name] for names in ARGUMENTS for name in names[-3:]}
    total = Launch(
        sum_parts_kernel,
        (split, tile.batch // SUM_ROWS),
        {**results, **shared},
        {**shape, "PARTS": parts, "SLICE": SUM_ROWS // 4},
    )
    return [product, total]


@cache
def tile_for(device: torch.device) -> MediumTile:
    """The tile for the tensor cores of a device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9:
        return IN_REGISTERS
    return IN_SHARED_MEMORY


@cache
def division_for(tiles: int, x_tiles: int, steps: int, slots: int) -> Division:
    """The fastest division of ``tiles`` of ``steps`` steps among ``slots`` programs at a time."""
    best, least = Division(tiles), _steps(tiles * x_tiles, 0, steps, 0, slots)
    rounds = range(tiles * x_tiles // slots + 1)
    for whole in sorted({count * slots // x_tiles for count in rounds}):
        for parts in COLUMN_PARTS:
            split = (tiles - whole) * x_tiles * parts
            if not split or 2 * parts > steps:
                continue
            took = _steps(whole * x_tiles, split, steps, -(-steps // parts), slots)
            if took < least:
                best, least = Division(whole, parts), took
    return best


def _steps(whole: int, split: int, steps: int, part: int, slots: int) -> float:
    """The time of ``whole`` programs of ``steps`` steps, then ``split`` ones of ``part`` steps."""
    rounds, more = divmod(whole, slots)
    one, some = steps + PROGRAM_STEPS, part + PROGRAM_STEPS + STORE_STEPS
    end = float((rounds + (more > 0)) * one)
    if not split:
        return end
    count, done = 0, 0
    while done < split:
        count += 1
        late = max(0, (rounds * one + count * some - (rounds + 1) * one) // some)
        done = (slots - more) * count + more * late
    return max(end, rounds * one + count * some) + SUM_STEPS + SUM_PART_STEPS * split

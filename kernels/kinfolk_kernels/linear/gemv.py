"""Matrices times one to four int8 rows, bound by the bandwidth of reading them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.int8_rows import Int8Rows
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemv_kernel import gemv_kernel
from kinfolk_kernels.linear.segments import Segments
from kinfolk_kernels.planes import INTERLEAVE, Planes

WARP = 32

MIN_WIDE_MATRIX_ROWS = 8192
"""Below this many matrix rows, two warps share a group of four, so that there are enough warps."""

MAX_WARP_COLUMNS = 16 * 32 * WARP
"""Most columns that one warp processes: the loop is unrolled, with 1024 columns a turn."""

GEMV_REGISTERS = 96
"""Registers of a thread: enough to issue loads before the products of earlier loads."""

MOST_WARPS_AHEAD = 3300
"""Most warps of a launch for one row that starts early and asks for its first weights while the
launch before still runs: a fifth more than an H100 or H200 runs at a time. Many more would be
distributed unevenly, wherever earlier programs end (``benchmarks/NOTES.md``)."""

MOST_COLUMNS_AHEAD = 8192
"""With more columns, what is asked for early is a small part."""

FOUR_ROWS_REGISTERS = 128
"""The same with four rows, whose sums would be spilled otherwise."""


def gemv(
    matrices: Sequence[Planes],
    x: Int8Rows,
    outs: Sequence[torch.Tensor],
    warps: int | None = None,
    *,
    asm: bool = True,
) -> Launch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T, M <= 4, for up to four matrices of K
    columns; ``warps`` of a program."""
    warps, rows = warps or warps_for(matrices), outs[0].shape[0]
    segments = Segments.make(matrices, outs, lambda planes: -(-planes.rows // INTERLEAVE))
    columns = matrices[0].columns
    small = segments.programs * warps <= MOST_WARPS_AHEAD and columns <= MOST_COLUMNS_AHEAD
    ahead = rows == 1 and small
    return Launch(
        gemv_kernel,
        (segments.programs,),
        {**segments.arguments, "x_ptr": x.words, "d_ptr": x.scale},
        {
            **segments.constants,
            "K": columns,
            "ROWS": rows,
            "LANES": WARP * warps,
            "AHEAD": ahead,
            "ASM": asm,
        },
        warps,
        registers=GEMV_REGISTERS if rows < 4 else FOUR_ROWS_REGISTERS,
        early=ahead,
    )


def warps_for(matrices: Sequence[Planes]) -> int:
    """Warps of a program, for the shapes of the matrices."""
    columns = matrices[0].columns
    warps = (
        2
        if sum(planes.rows for planes in matrices) < MIN_WIDE_MATRIX_ROWS and columns > 32 * WARP
        else 1
    )
    while columns > MAX_WARP_COLUMNS * warps:
        warps *= 2
    return warps

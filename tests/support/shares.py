"""Checks how the products in CUDA C++ divide matrices among programs."""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk_kernels.cuda_source import LEAST_MULTIPROCESSORS
from kinfolk_kernels.linear.gemm_mma import MmaTile
from kinfolk_kernels.planes import Planes

MULTIPROCESSORS = 132


def assert_covered_once(
    matrices: Sequence[Planes], tile: MmaTile, units: int, parts: int = 1
) -> None:
    """Shares cover every unit of columns once, and those of all parts of x the device once."""
    assert tile.span >= units
    programs = 0
    for planes in matrices:
        end = -(-planes.rows // (32 * tile.row_warps)) * tile.span
        own = -(-end // tile.share)
        programs += own
        for tile_end in range(tile.span, end + 1, tile.span):
            first, last = (tile_end - tile.span) // tile.share, (tile_end - 1) // tile.share
            assert last - first < LEAST_MULTIPROCESSORS
        # Each share begins within the columns of its tile, so no program waits for sums of nothing.
        for program in range(own):
            start = program * tile.share
            assert start % tile.span < units
            assert start < end
    assert parts * programs <= MULTIPROCESSORS

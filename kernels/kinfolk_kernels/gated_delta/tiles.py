"""Tile sizes of the gated delta kernels: fixed, so that no result depends on measured timings.

``values`` and ``warps`` do not change the order of a row's sums; ``rows`` changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk_kernels.device import SMALL_SHARED


@dataclass(frozen=True, slots=True)
class DeltaTile:
    """``values``: rows of a head's state in a program; ``rows``: kept rows that a commit adds at
    once; ``registers``: most registers of a thread."""

    values: int
    warps: int
    rows: int = 1
    registers: int | None = None


TILES = {
    "advance": DeltaTile(values=16, warps=4),
    "few": DeltaTile(values=16, warps=4, registers=168),
    "drafted": DeltaTile(values=32, warps=4),
    "commit": DeltaTile(values=16, warps=4, rows=8),
}


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """How chunks of slices are processed; only ``paired`` and ``batched`` change a number.

    A program that carries states over chunks has ``values`` rows of a head's state, ``warps``, and
    ``stages`` chunks in shared memory. ``registers``: most registers of a thread that prepares
    chunks. ``paired``: products of pairs of float16 in three passes, or of one float16 in one, see
    ``pairs``. ``batched``: how chunks are inverted, see ``systems``.
    """

    values: int
    warps: int
    stages: int
    registers: int | None = None
    paired: bool = True
    batched: bool = True


def chunk_tile(shared: int, *, paired: bool = True) -> ChunkTile:
    """The tile where a program may use ``shared`` bytes of shared memory.

    With much of it there are instructions for products of 64 rows by four warps, and room for two
    chunks of 96 KB, or for three of half the size."""
    if shared > 2 * SMALL_SHARED:
        return ChunkTile(values=64, warps=4, stages=2 if paired else 3, paired=paired)
    return ChunkTile(values=32, warps=8, stages=1, paired=paired, batched=False)

"""Tile sizes of the gated delta kernels: fixed, so that no number depends on a timing.

They change how much a program does and not the order in which a row's numbers are summed; ``rows``
of a block does change it and is the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeltaTile:
    """``values`` rows of a head's state a program, ``rows`` of a sequence at once."""

    values: int
    warps: int
    rows: int = 16


TILES = {
    "advance": DeltaTile(values=16, warps=4),
    "drafted": DeltaTile(values=32, warps=4),
    "commit": DeltaTile(values=16, warps=4),
}

"""Tile sizes of the gated delta kernels: fixed, so that no result depends on measured timings.

``values`` and ``warps`` do not change the order of a row's sums; ``rows`` changes it, and is the
same for all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeltaTile:
    """``values``: rows of a head's state in a program; ``rows``: rows of a sequence in a block."""

    values: int
    warps: int
    rows: int = 16


TILES = {
    "advance": DeltaTile(values=16, warps=4),
    "drafted": DeltaTile(values=32, warps=4),
    "commit": DeltaTile(values=16, warps=4),
}

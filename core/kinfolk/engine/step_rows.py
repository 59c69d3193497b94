"""Rows of a step: of a slice of a prompt, and of all that a step holds."""

from __future__ import annotations

from kinfolk.engine.sizing import GIB
from kinfolk.plans import WeightPlan

SLICE_ROWS = {"cpu": 512, "cuda": 2048}
"""Rows of a slice, by device."""

EXPERT_SLICE_ROWS = 4096
"""Rows of a slice of a model with experts on a large GPU: of 2048, each of 256 experts would get
64, half a tile of its matrices."""

MIXED_SLICE_ROWS = {SLICE_ROWS["cpu"]: 64, SLICE_ROWS["cuda"]: 192, EXPERT_SLICE_ROWS: 512}
"""Rows of a slice of a step in which sequences decode, by those of a slice elsewhere. They wait for
it: 35 ms for 192 rows of a 27B and for 512 of a mixture with 3 B active weights (H200). 192 rows
and up to 64 that decode are in one captured step of 256."""

LARGE_BYTES = 32 * GIB
"""A GPU that has so much to use is large."""

COMPANY_ROWS = 2048
"""Most rows, by default, that a step has beside a slice."""


def longest_slice(device: str, weights: WeightPlan, usable: int) -> int:
    """Rows of a slice of a prompt on a ``device`` with ``usable`` bytes. It is constant for a
    process. No draft is longer."""
    mixture = any(spec.role == "experts" for spec in weights)
    if mixture and device == "cuda" and usable >= LARGE_BYTES:
        return EXPERT_SLICE_ROWS
    return SLICE_ROWS[device]


def longest_step(asked: int | None, slice_rows: int) -> int:
    """Most rows of a step: what was ``asked`` for, or a slice and as many again, up to 2048."""
    return asked or slice_rows + min(slice_rows, COMPANY_ROWS)


def longest_mixed_slice(asked: int | None, slice_rows: int) -> int | None:
    """Most rows of a slice of a step in which sequences decode, of slices of ``slice_rows`` rows:
    what was ``asked`` for, or by these. ``None`` if 0 is asked for: no fewer."""
    return MIXED_SLICE_ROWS[slice_rows] if asked is None else asked or None

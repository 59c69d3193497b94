"""Rows of a step: of a slice of a prompt, and of all that a step holds."""

from __future__ import annotations

from kinfolk.engine.sizing import GIB
from kinfolk.plans import WeightPlan

SLICE_ROWS = {"cpu": 512, "cuda": 2048}
"""Rows of a slice, by device."""

EXPERT_SLICE_ROWS = 4096
"""Rows of a slice of a model with experts on a large GPU: of 2048, each of 256 experts would get
64, half a tile of its matrices."""

LARGE_BYTES = 32 * GIB
"""A GPU that has so much to use is large."""

COMPANY_ROWS = 2048
"""Most rows, by default, that a step has beside a slice."""


def longest_slice(device: str, weights: WeightPlan, usable: int) -> int:
    """Rows of a slice of a prompt on a ``device`` with ``usable`` bytes. It is constant for a
    process, so that results do not depend on load. No draft is longer."""
    mixture = any(spec.role == "experts" for spec in weights)
    if mixture and device == "cuda" and usable >= LARGE_BYTES:
        return EXPERT_SLICE_ROWS
    return SLICE_ROWS[device]


def longest_step(asked: int | None, slice_rows: int) -> int:
    """Most rows of a step: what was ``asked`` for, or a slice and as many again, up to 2048."""
    return asked or slice_rows + min(slice_rows, COMPANY_ROWS)

"""Rows of a step: of a slice of a prompt, and of all that a step holds."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.engine.sizing import GIB
from kinfolk.plans import WeightPlan


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows by default: of a ``slice`` of a prompt; of a slice while other sequences decode, which
    wait for it (``mixed_slice``); of a whole ``step``."""

    slice: int
    mixed_slice: int
    step: int


ON_CPU = StepRows(512, 64, 1024)

ON_GPU = StepRows(2048, 192, 4096)
"""16 streams beside a slice of 192 rows of a 27B wait 31 ms at most (H200). With up to 64 that
decode it is in one captured step of 256."""

ON_LARGE_GPU = StepRows(3072, 192, 4096)
"""Each slice turns all packed weights into numbers, a tenth of the time of a long prompt
with slices of 2048 rows. Other prompts wait for a slice: 0.3 s for 3072 rows of a 27B (H200)."""

EXPERTS_ON_LARGE_GPU = StepRows(4096, 512, 6144)
"""With 2048 rows, each of 256 experts would get 64, half a tile of its matrices. 512 rows of a
mixture with 3 B active weights take 35 ms (H200)."""

BY_LENGTH = (EXPERTS_ON_LARGE_GPU, ON_LARGE_GPU, ON_GPU, ON_CPU)
"""Those with the longest slices first."""

LARGE_BYTES = 32 * GIB
"""A GPU that has so much to use is large."""


def longest_slice(device: str, weights: WeightPlan, usable: int) -> int:
    """Rows of a slice of a prompt on a ``device`` with ``usable`` bytes. It is constant for a
    process. No draft is longer."""
    if device == "cpu":
        return ON_CPU.slice
    if usable < LARGE_BYTES:
        return ON_GPU.slice
    mixture = any(spec.role == "experts" for spec in weights)
    return (EXPERTS_ON_LARGE_GPU if mixture else ON_LARGE_GPU).slice


def longest_step(asked: int | None, slice_rows: int) -> int:
    """Most rows of a step with slices of ``slice_rows`` rows: what was ``asked`` for, or by
    these."""
    return asked or _with_slices_of(slice_rows).step


def longest_mixed_slice(asked: int | None, slice_rows: int) -> int | None:
    """Most rows of a slice of a step in which sequences decode, of slices of ``slice_rows`` rows:
    what was ``asked`` for, or by these. ``None`` if 0 is asked for: no fewer."""
    return _with_slices_of(slice_rows).mixed_slice if asked is None else asked or None


def _with_slices_of(slice_rows: int) -> StepRows:
    """Those of the longest slices that are no longer than ``slice_rows``."""
    return next(rows for rows in BY_LENGTH if rows.slice <= slice_rows)

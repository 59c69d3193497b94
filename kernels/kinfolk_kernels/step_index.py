"""Which rows of a step are whose, as tensors on the device that kernels read.

Grids and loops of the recurrent kernels need the rows of each sequence; a batch knows them as host
integers. The index is made once a step, not once a layer. A batch that carries an ``index`` of its
own, say in buffers that a captured graph reads, is asked for it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kinfolk_kernels.rows import Rows

MOST_DRAFTED = 64
"""Rows of a drafted segment: the bits of a path."""


@dataclass(frozen=True, slots=True)
class StepIndex:
    """B sequences; a slice is a certain segment of more than one row.

    spans   int32 [B, 4]   first row, rows (0 = padding), slot, 1 if drafted
    path    int64 [R]      of drafted rows: bit j = row j of the segment is an ancestor or itself
    slices  int32 [S, 3]   first row, rows, slot
    singles, draft_rows    whether any segment is one certain row; the most rows of a drafted one
    """

    spans: torch.Tensor
    path: torch.Tensor
    slices: torch.Tensor
    singles: bool
    draft_rows: int


class _Latest:
    """The index of the batch that asked last: all layers of a step ask for the same one."""

    def __init__(self) -> None:
        self.rows: Rows | None = None
        self.index: StepIndex | None = None


_latest = _Latest()


def index_of(rows: Rows) -> StepIndex:
    """The index that the batch carries, else one made of its segments."""
    carried: StepIndex | None = getattr(rows, "index", None)
    if carried is not None:
        return carried
    if _latest.rows is not rows or _latest.index is None:
        _latest.index = build_index(rows)
        _latest.rows = rows
    return _latest.index


def build_index(rows: Rows) -> StepIndex:
    """Make the index: two small uploads, and a few launches if anything is drafted."""
    device = rows.parent_row.device
    segments = rows.segments
    slices = [
        (s.start, s.stop - s.start, s.slot)
        for s in segments
        if not s.drafted and s.stop - s.start > 1
    ]
    drafted = [s.stop - s.start for s in segments if s.drafted]
    spans = [(s.start, s.stop - s.start, s.slot, int(s.drafted)) for s in segments]
    # One upload for both.
    packed = torch.tensor([*_flat(spans), *_flat(slices)], dtype=torch.int32, device=device)
    end = 4 * len(spans)
    return StepIndex(
        packed[:end].view(-1, 4),
        paths(rows) if drafted else rows.parent_row,
        packed[end:].view(-1, 3),
        any(not s.drafted and s.stop - s.start == 1 for s in segments),
        max(drafted, default=0),
    )


def paths(rows: Rows) -> torch.Tensor:
    """int64 [R]: bit j of a row is set if row j of its segment is an ancestor or the row itself.

    Right for segments of at most 64 rows; without a look at a tensor from the host.
    """
    parent = rows.parent_row
    row = torch.arange(parent.shape[0], device=parent.device)
    starts = torch.tensor([s.start for s in rows.segments], device=parent.device)
    place = (row - starts[rows.sequence_of_row]).clamp(0, MOST_DRAFTED - 1)
    bits = torch.ones_like(parent) << place
    up = parent
    # Doubling: after n rounds the bits hold 2^n ancestors and ``up`` is the next one.
    for _ in range((MOST_DRAFTED - 1).bit_length()):
        above = up.clamp_min(0)
        bits = bits | torch.where(up >= 0, bits[above], 0)
        up = torch.where(up >= 0, up[above], -1)
    return bits


def _flat(table: Sequence[tuple[int, ...]]) -> list[int]:
    return [number for row in table for number in row]

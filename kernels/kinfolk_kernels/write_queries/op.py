"""The op ``write_queries``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.row_layout import PREVIEWED

RING_ROWS = 8
"""Last rows of a sequence whose queries are kept."""


@dataclass(frozen=True, slots=True)
class WriteQueriesArguments:
    """Keeps the queries of the last rows of every sequence, for ``chunk_scores``.

    Operands: queries [R, heads, D] of one layer, as attention multiplied them; ``positions`` int64
    [R]; ``spans`` int32 [B, 4] of the row layout; of K sequences that keep drafted rows, ``path``
    int64 [K, T], kept rows of the step in order, and ``n_keep`` and ``slots`` int64 [K], 0 rows =
    padding; a ring [slots, RING_ROWS, heads, D] in the dtype of the queries, which is written.

    The query of position p is stored at ring row p % RING_ROWS of its sequence's slot: of certain
    and ``PREVIEWED`` sequences the last RING_ROWS rows, of drafted ones the last RING_ROWS that are
    kept. So after a step a slot has the queries of the last positions that are committed or
    previewed, of every row of a tree that was kept and of none that was not; positions that were
    not computed in this slot leave what was there before.
    """

    dtype: torch.dtype
    device: torch.device


def write_queries(
    arguments: WriteQueriesArguments,
    queries: torch.Tensor,
    positions: torch.Tensor,
    spans: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slots: torch.Tensor,
    ring: torch.Tensor,
) -> None:
    """See :class:`WriteQueriesArguments`."""
    for first, rows, slot, drafted in spans.tolist():
        if drafted in (0, PREVIEWED):
            _write(queries, positions, list(range(first, first + rows)), slot, ring)
    for row, count, slot in zip(path.tolist(), n_keep.tolist(), slots.tolist(), strict=True):
        _write(queries, positions, row[:count], slot, ring)


def recent(ring: torch.Tensor, slot: int, length: int, rows: int) -> torch.Tensor:
    """The queries of the positions ``length - rows`` to ``length - 1`` of a slot, oldest first:
    [rows, ...] of a ring [slots, RING_ROWS, ...]. At most RING_ROWS; all must have been written."""
    if not 0 < rows <= min(RING_ROWS, length):
        raise ValueError(
            f"{rows} of the last rows of {length} positions: 1 to {min(RING_ROWS, length)} are kept"
        )
    of_slot = ring[slot].roll(-(length % RING_ROWS), 0)
    return of_slot[RING_ROWS - rows :]


def _write(
    queries: torch.Tensor, positions: torch.Tensor, rows: list[int], slot: int, ring: torch.Tensor
) -> None:
    last = torch.tensor(rows[-RING_ROWS:], dtype=torch.int64, device=queries.device)
    ring[slot, positions[last] % RING_ROWS] = queries[last]


WRITE_QUERIES = Op("write_queries", WriteQueriesArguments, write_queries)

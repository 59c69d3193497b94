"""Stores the vectors of rows in a pool or, for tree rows, in the arena."""

from __future__ import annotations

import torch

from kinfolk_kernels.rows import CHUNK_POSITIONS, Rows


def kv_write(
    pool: torch.Tensor, arena: torch.Tensor, x: torch.Tensor, rows: Rows, pool_index: int
) -> None:
    """Store x [R, heads, dim] in pool and arena [blocks, heads, 64, dim], in their dtype.

    A row goes to ``arena_row`` if that is not -1, else to ``write_row[pool_index]``. Arena rows
    are also written to the dummy block of the pool; pool rows are not written to the arena.
    """
    target = rows.write_row[pool_index]
    stored = x.to(pool.dtype)
    pool[target // CHUNK_POSITIONS, :, target % CHUNK_POSITIONS] = stored
    held = rows.arena_row >= 0
    if rows.layout.traits.draft_rows and bool(held.any()):
        place = rows.arena_row[held]
        arena[place // CHUNK_POSITIONS, :, place % CHUNK_POSITIONS] = stored[held]

"""Storing one vector a row and head, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk_kernels.qk_rope_write.kv_write import kv_write
from kinfolk_kernels.rows import CHUNK_POSITIONS

HEADS, DIM = 3, 5


def poisoned(blocks, dtype):
    """A view inside a block of other sections' bytes, all NaN."""
    whole = torch.full((blocks, HEADS * CHUNK_POSITIONS * DIM + 40), torch.nan, dtype=dtype)
    view = whole[:, 16 : 16 + HEADS * CHUNK_POSITIONS * DIM].view(
        blocks, HEADS, CHUNK_POSITIONS, DIM
    )
    return whole, view


def written(data):
    """The written places (block, offset); each is written completely or not at all."""
    places = ~data.isnan()
    assert torch.equal(places.any(3).any(1), places.all(3).all(1))
    return {tuple(place) for place in places.all(3).all(1).nonzero().tolist()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 129])
def test_every_row_lies_at_its_place_and_the_rest_is_untouched(steps, numbers, dtype, length):
    rows = steps.build(
        steps.certain(7, length), steps.chain(length, 3), steps.certain(64, 1), places=length
    )
    whole, pool = poisoned(rows.blocks, dtype)
    arena_whole, arena = poisoned(1, dtype)
    x = numbers(len(rows.positions), HEADS, DIM)
    kv_write(pool, arena, x, rows, 0)
    expected = set()
    for row, (sequence, position) in enumerate(
        zip(rows.sequence_of_row.tolist(), rows.positions.tolist(), strict=True)
    ):
        block = int(rows.table.blocks[sequence, position // CHUNK_POSITIONS])
        assert torch.equal(pool[block, :, position % CHUNK_POSITIONS], x[row].to(dtype))
        expected.add((block, position % CHUNK_POSITIONS))
    assert written(pool) == expected
    assert whole[:, :16].isnan().all()
    assert whole[:, 16 + HEADS * CHUNK_POSITIONS * DIM :].isnan().all()
    assert arena_whole.isnan().all()


def test_tree_rows_go_to_the_arena_and_only_to_the_dummy_block(steps, numbers):
    rows = steps.build(
        steps.certain(60, 9),
        steps.random_tree(63, 30),
        steps.chain(5, 2),
        steps.random_tree(10, 34, seed=1),
        places=1,
    )
    _, pool = poisoned(rows.blocks, torch.float32)
    _, arena = poisoned(2, torch.float32)
    x = numbers(len(rows.positions), HEADS, DIM)
    kv_write(pool, arena, x, rows, 0)
    trees = torch.cat([x[rows.span(1)], x[rows.span(3)]])
    assert torch.equal(arena[0].transpose(0, 1), trees)
    assert arena[1].isnan().all()
    owned = {(b, o) for b, o in written(pool) if b != 0}
    assert len(owned) == 9 + 2


def test_each_pool_has_places_of_its_own(steps, numbers):
    rows = steps.build(steps.certain(0, 3))
    two = torch.stack([rows.write_row[0], rows.write_row[0] + CHUNK_POSITIONS])
    rows = replace(rows, write_row=two)
    _, pool = poisoned(rows.blocks, torch.float32)
    _, arena = poisoned(1, torch.float32)
    kv_write(pool, arena, numbers(3, HEADS, DIM), rows, 1)
    assert written(pool) == {(2, 0), (2, 1), (2, 2)}

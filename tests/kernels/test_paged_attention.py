"""Attention over block tables, against a dense masked softmax in float64.

All that a row must not read is NaN: other blocks, unwritten positions, the arena, the dummy block.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk_kernels.paged_attention import op as reference
from kinfolk_kernels.paged_attention import torch_backend as fast

BACKENDS = pytest.mark.parametrize(
    "attend", [reference.paged_attention, fast.paged_attention], ids=["ref", "torch"]
)
DIM, VALUE_DIM = 16, 24
SCALE = DIM**-0.5

# (relative L2 of a row and head, largest error / rms). Scores of heavy-tailed numbers reach 100,
# where a unit in the last place is 8e-6 and shows in the exponential.
F32 = (4e-5, 1e-4)
# The query is float32; keys and values carry their own rounding, which the oracle shares.
HALF_QUERY = (1e-3, 1e-2)


@pytest.fixture
def fill(memories):
    """Keys and values of 16 and 24 numbers of each sequence."""
    return lambda rows, heads, draw, *dtype: memories.fill(
        rows, heads, draw, (DIM, VALUE_DIM), *dtype
    )


@pytest.fixture
def check(memories, assert_near):
    def compare(attend, rows, memory, q, window=None, bound=F32):
        found = attend(q, memory.pools, memory.arenas, rows, rows.table, window, SCALE)
        assert found.dtype == q.dtype
        assert_near(found, memories.exact(q, memory, rows, window, SCALE), bound)

    return compare


@BACKENDS
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 129])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 2), (6, 1)])
def test_slices_of_a_prompt(steps, numbers, fill, check, attend, length, heads, kv_heads):
    cut = length // 3
    rows = steps.build(steps.certain(cut, length - cut), places=length)
    memory = fill(rows, kv_heads, numbers)
    check(attend, rows, memory, numbers(length - cut, heads, DIM))


@BACKENDS
@pytest.mark.parametrize("window", [None, 1, 5, 64, 100])
def test_a_ragged_step_of_everything(steps, numbers, fill, check, attend, window):
    rows = steps.build(
        steps.certain(0, 65),
        steps.certain(128, 1),
        steps.chain(63, 7),
        steps.random_tree(127, 23),
        steps.certain(0, 1),
        steps.random_tree(3, 40, seed=5),
        places=2,
    )
    memory = fill(rows, 2, numbers)
    check(attend, rows, memory, numbers(len(rows.positions), 8, DIM), window)


@BACKENDS
def test_a_tree_of_64_rows_uses_every_bit(steps, numbers, fill, check, attend):
    rows = steps.build(steps.tree(70, [-1, *range(62), 62]))
    assert int(rows.ancestors[-1]) == -1
    check(attend, rows, fill(rows, 1, numbers), numbers(64, 2, DIM))


@BACKENDS
def test_a_tree_without_context(steps, numbers, fill, check, attend):
    rows = steps.build(steps.tree(0, [-1, 0, 0, 1]))
    check(attend, rows, fill(rows, 1, numbers), numbers(4, 2, DIM))


@BACKENDS
@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16])
def test_narrow_storage_is_read_as_it_is(steps, numbers, fill, check, attend, storage):
    rows = steps.build(steps.certain(50, 20), steps.random_tree(64, 9), places=0)
    memory = fill(rows, 2, lambda *shape: numbers(*shape).clamp(-100, 100), storage)
    check(attend, rows, memory, numbers(29, 4, DIM))


@BACKENDS
def test_a_narrow_query_gives_a_narrow_result(steps, numbers, fill, check, attend):
    rows = steps.build(steps.certain(100, 3))
    memory = fill(rows, 2, lambda *shape: torch.randn(*shape), torch.float16)
    check(attend, rows, memory, torch.randn(3, 4, DIM).half(), bound=HALF_QUERY)


@BACKENDS
def test_the_scale_is_the_one_given(steps, numbers, fill, memories, assert_near, attend):
    rows = steps.build(steps.certain(0, 5))
    memory, q = fill(rows, 1, numbers), numbers(5, 1, DIM)
    found = attend(q, memory.pools, memory.arenas, rows, rows.table, None, 1.0)
    assert_near(found, memories.exact(q, memory, rows, None, 1.0), F32)


@BACKENDS
def test_where_blocks_lie_changes_no_bit(steps, numbers, fill, memories, attend):
    parts = (steps.certain(130, 40), steps.chain(64, 5), steps.random_tree(99, 12))
    rows = steps.build(*parts)
    memory, q = fill(rows, 2, numbers), numbers(57, 4, DIM)
    found = attend(q, memory.pools, memory.arenas, rows, rows.table, None, SCALE)
    for seed in (1, 2):
        moved = steps.build(*parts, places=seed)
        assert not torch.equal(moved.table.blocks, rows.table.blocks)
        again = memories.place(moved, memory.sequences)
        shuffled = attend(q, again.pools, again.arenas, moved, moved.table, None, SCALE)
        assert torch.equal(shuffled, found)


@BACKENDS
def test_company_changes_no_bit(steps, numbers, fill, memories, attend):
    mine, tree = steps.certain(77, 9), steps.random_tree(66, 11)
    together = steps.build(steps.certain(0, 70), mine, steps.chain(128, 3), tree, places=3)
    memory, q = fill(together, 2, numbers), numbers(len(together.positions), 4, DIM)
    found = attend(q, memory.pools, memory.arenas, together, together.table, 50, SCALE)
    for index, part in ((1, mine), (3, tree)):
        alone = steps.build(part)
        own = memories.place(alone, [memory.sequences[index]])
        solo = attend(q[together.span(index)], own.pools, own.arenas, alone, alone.table, 50, SCALE)
        assert torch.equal(solo, found[together.span(index)])


@BACKENDS
def test_an_evicted_chunk_is_not_seen(steps, numbers, fill, memories, assert_near, attend):
    rows = steps.build(steps.certain(190, 4), places=1)
    memory, q = fill(rows, 1, numbers), numbers(4, 2, DIM)
    for pool in memory.pools:
        pool[int(rows.table.blocks[0, 1])] = torch.nan
    kept = torch.tensor([[0, 2, 3, 0]])
    table = replace(
        rows.table,
        blocks=rows.table.blocks.gather(1, kept),
        chunks=rows.table.chunks.gather(1, kept),
        lengths=(3,),
    )
    found = attend(q, memory.pools, memory.arenas, rows, table, None, SCALE)
    assert_near(found, memories.exact(q, memory, rows, None, SCALE, [1]), F32)


@BACKENDS
def test_nothing_is_written(steps, numbers, fill, attend):
    rows = steps.build(steps.certain(60, 9), steps.random_tree(5, 6), places=4)
    memory = fill(rows, 2, numbers)
    before = [x.clone() for x in (*memory.pools, *memory.arenas)]
    attend(numbers(15, 2, DIM), memory.pools, memory.arenas, rows, rows.table, 30, SCALE)
    for was, now in zip(before, (*memory.pools, *memory.arenas), strict=True):
        assert torch.equal(was.view(torch.int32), now.view(torch.int32))

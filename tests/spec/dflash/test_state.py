"""What the drafter keeps of a sequence: written in any slices, of kept rows only."""

from __future__ import annotations

import pytest
import torch
from dflash_bench import SHAPES, relative
from dflash_reference import Shape

BOUND = 2e-5
CONTEXT_ROWS = 150
SPLITS = {
    "one by one": [1] * CONTEXT_ROWS,
    "as verification keeps them": [3, 1, 6, 2, 1, 5] * 8 + [6],
    "slices of prompts": [64, 64, 22],
    "slices across chunks": [63, 2, 85],
}
NEAR = {"rtol": 1e-5, "atol": 1e-5}
SLIDING = SHAPES["sliding, then full"]
GATED = SHAPES["gates of heads"]
shapes = pytest.mark.parametrize("shape", [SLIDING, GATED], ids=["sliding", "gates"])


def assert_near(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **NEAR)


@shapes
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_any_slices_give_the_same_as_all_rows_at_once(shape, split, make, features):
    assert sum(split) == CONTEXT_ROWS
    pair, rows = make(shape), features(shape, CONTEXT_ROWS)
    whole, sliced = pair.bench.open(), pair.bench.open()
    pair.bench.extend({whole: rows})
    for part in rows.split(split):
        pair.bench.extend({sliced: part})
    hidden = pair.bench.hidden({whole: 7, sliced: 7})
    assert relative(hidden[1], hidden[0]) <= BOUND
    pair.reference.extend(rows)
    assert relative(hidden[1], pair.reference.hidden(7)) <= BOUND


@shapes
def test_slices_of_several_sequences_do_not_mix(shape, make, features):
    pair = make(shape)
    first, second = pair.bench.open(), pair.bench.open()
    rows, others = features(shape, 40, seed=1), features(shape, 70, seed=2)
    pair.bench.extend({first: rows[:30], second: others[:5]})
    pair.bench.extend({second: others[5:], first: rows[30:]})
    both = pair.bench.hidden({second: 4, first: 9})
    alone = make(shape)
    lease = alone.bench.open()
    alone.bench.extend({lease: rows})
    assert relative(both[1], alone.bench.hidden({lease: 9})[0]) <= BOUND
    pair.reference.extend(others)
    assert relative(both[0], pair.reference.hidden(4)) <= BOUND


@shapes
@pytest.mark.parametrize("kept", range(1, 7))
def test_state_after_a_commit_is_that_of_the_kept_rows(shape, kept, make, features):
    pair, rows, drafted = make(shape), features(shape, 61), features(shape, 6, seed=9)
    lease, fresh = pair.bench.open(), pair.bench.open()
    pair.bench.extend({lease: rows})
    pair.bench.verify(lease, drafted, range(kept))
    pair.bench.extend({fresh: torch.cat([rows, drafted[:kept]])})
    assert pair.bench.length(lease) == pair.bench.length(fresh) == 61 + kept
    assert_near(pair.bench.stored(lease), pair.bench.stored(fresh))


TREE = (-1, 0, 0, 1, 2, 2, 5)
PATHS = [[0], [0, 1], [0, 1, 3], [0, 2], [0, 2, 4], [0, 2, 5], [0, 2, 5, 6]]


@shapes
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_state_after_a_tree_is_that_of_its_kept_path(shape, path, make, features):
    """Rows of a tree stand at the positions of their depth."""
    pair, rows, drafted = make(shape), features(shape, 62), features(shape, 7, seed=9)
    lease, fresh = pair.bench.open(), pair.bench.open()
    pair.bench.extend({lease: rows})
    pair.bench.verify(lease, drafted, path, parents=TREE)
    pair.bench.extend({fresh: torch.cat([rows, drafted[path]])})
    assert_near(pair.bench.stored(lease), pair.bench.stored(fresh))


@shapes
@pytest.mark.parametrize("parents", [None, TREE], ids=["chain", "tree"])
def test_rejected_rows_leave_no_trace(shape, parents, make, features):
    """Everything but committed positions becomes NaN before each draft."""
    pair = make(shape)
    lease = pair.bench.open()
    pair.feed(lease, features(shape, 60))
    for step in range(5):
        drafted = features(shape, len(TREE), seed=step)
        keep = [0, 2, 5][: 1 + step % 3] if parents else list(range(1 + step))
        pair.bench.verify(lease, drafted, keep, parents)
        pair.reference.extend(drafted[keep])
        pair.bench.poison_uncommitted(lease)
        hidden = pair.bench.hidden({lease: step})[0]
        assert relative(hidden, pair.reference.hidden(step)) <= BOUND


@shapes
def test_a_draft_changes_nothing_that_is_kept(shape, make, features):
    pair = make(shape)
    lease, other = pair.bench.open(), pair.bench.open()
    pair.bench.extend({lease: features(shape, 65), other: features(shape, 12, seed=8)})
    block = pair.bench.block({lease: 1, other: 2})
    before = [pool.data[1:].clone() for pool in pair.bench.state.pools]
    with torch.inference_mode():
        first = pair.bench.drafter.draft(block, pair.bench.state)
        again = pair.bench.drafter.draft(block, pair.bench.state)
    for pool, data in zip(pair.bench.state.pools, before, strict=True):
        assert torch.equal(pool.data[1:], data)
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.scores, again.scores)


def test_a_lane_does_not_see_the_blocks_of_others(make, features):
    pair = make(SHAPES["convolutions and selector"])
    leases = [pair.bench.open() for _ in range(3)]
    rows = [features(pair.shape, n, seed=n) for n in (70, 3, 33)]
    pair.bench.extend(dict(zip(leases, rows, strict=True)))
    anchors = dict(zip(leases, (5, 6, 7), strict=True))
    together = pair.bench.draft(anchors)
    for lane, (lease, anchor) in enumerate(anchors.items()):
        alone = pair.bench.draft({lease: anchor})
        assert torch.equal(together.tokens[lane], alone.tokens[0])
        torch.testing.assert_close(together.scores[lane], alone.scores[0], rtol=0, atol=1e-5)


def test_windowed_layers_give_back_the_blocks_that_they_have_passed(make, features):
    shape = Shape((70, None), (True, False))
    pair = make(shape)
    lease = pair.bench.open()
    for step in range(5):
        pair.feed(lease, features(shape, 70, seed=step))
    held = [len(pool.tables[lease.slot]) for pool in pair.bench.state.pools]
    assert held[0] == 6 > held[1]
    assert relative(pair.bench.hidden({lease: 2})[0], pair.reference.hidden(2)) <= BOUND

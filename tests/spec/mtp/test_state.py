"""What the block keeps of a sequence: written in any slices, of kept rows only."""

from __future__ import annotations

import pytest
import torch
from mtp_bench import random_rows, relative

from kinfolk.sched.request import Sampling

BOUND = 1e-5
ROWS = 150
SPLITS = {
    "one by one": [1] * ROWS,
    "as verification keeps them": [3, 1, 6, 2, 1, 5] * 8 + [6],
    "slices of prompts": [64, 64, 22],
    "slices across chunks": [63, 2, 85],
}
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def part(rows, start, stop):
    tokens, hidden = rows
    return tokens[start:stop], hidden[start:stop]


def chosen(rows, keep):
    tokens, hidden = rows
    return [tokens[i] for i in keep], hidden[list(keep)]


def assert_near(found, expected):
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **NEAR)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_any_slices_give_the_same_as_all_rows_at_once(split, make):
    assert sum(split) == ROWS
    pair, rows = make(), random_rows(ROWS)
    whole, sliced = pair.bench.open(), pair.bench.open()
    pair.bench.extend({whole: rows})
    start = 0
    for count in split:
        pair.bench.extend({sliced: part(rows, start, start + count)})
        start += count
    assert_near(pair.bench.stored(sliced), pair.bench.stored(whole))
    pair.reference.extend(*rows)
    pair.bench.draft({sliced: 7})
    assert relative(pair.bench.rows(), pair.expected(7)) <= BOUND


def test_slices_of_several_sequences_do_not_mix(make):
    pair = make()
    first, second = pair.bench.open(), pair.bench.open()
    rows, others = random_rows(40, 1), random_rows(70, 2)
    pair.bench.extend({first: part(rows, 0, 30), second: part(others, 0, 5)})
    pair.bench.extend({second: part(others, 5, 70), first: part(rows, 30, 40)})
    pair.reference.extend(*others)
    pair.bench.draft({first: 9, second: 4})
    assert relative(pair.bench.rows(1), pair.expected(4)) <= BOUND


@pytest.mark.parametrize("kept", range(1, 7))
def test_state_after_a_commit_is_that_of_the_kept_rows(kept, make):
    pair, rows, drafted = make(), random_rows(61), random_rows(6, 9)
    lease, fresh = pair.bench.open(), pair.bench.open()
    pair.bench.extend({lease: rows})
    pair.bench.verify(lease, *drafted, keep=range(kept))
    pair.bench.extend({fresh: rows})
    pair.bench.extend({fresh: part(drafted, 0, kept)})
    assert pair.bench.length(lease) == pair.bench.length(fresh) == 61 + kept
    assert_near(pair.bench.stored(lease), pair.bench.stored(fresh))


TREE = (-1, 0, 0, 1, 2, 2, 5)
PATHS = [[0], [0, 1], [0, 1, 3], [0, 2], [0, 2, 4], [0, 2, 5], [0, 2, 5, 6]]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_state_after_a_tree_is_that_of_its_kept_path(path, make):
    """A row's hidden state is that of its parent in the tree, not of the row above it."""
    pair, rows, drafted = make(), random_rows(62), random_rows(7, 9)
    lease, fresh = pair.bench.open(), pair.bench.open()
    pair.bench.extend({lease: rows})
    pair.bench.verify(lease, *drafted, keep=path, parents=TREE)
    pair.bench.extend({fresh: rows})
    pair.bench.extend({fresh: chosen(drafted, path)})
    assert_near(pair.bench.stored(lease), pair.bench.stored(fresh))


@pytest.mark.parametrize("parents", [None, TREE], ids=["chain", "tree"])
def test_rejected_rows_leave_no_trace(parents, make):
    """Everything but what is committed becomes NaN before each draft."""
    pair = make()
    lease = pair.bench.open()
    pair.feed(lease, 60)
    for step in range(5):
        drafted = random_rows(len(TREE), seed=step)
        keep = [0, 2, 5][: 1 + step % 3] if parents else list(range(1 + step))
        pair.bench.verify(lease, *drafted, keep, parents)
        pair.reference.extend(*chosen(drafted, keep))
        pair.bench.poison_uncommitted([lease])
        pair.bench.draft({lease: step})
        assert relative(pair.bench.rows(), pair.expected(step)) <= BOUND


def test_drafted_rows_change_nothing_until_they_are_kept(make):
    pair = make()
    lease = pair.bench.open()
    pair.feed(lease, 30)
    before = pair.bench.stored(lease)
    pair.bench.verify(lease, *random_rows(5, 1), keep=[])
    for one, other in zip(pair.bench.stored(lease), before, strict=True):
        assert torch.equal(one, other)


def test_the_state_behind_any_row_of_a_slice_can_be_stored(make):
    """As for a checkpoint in the middle of a prompt, and at its end."""
    pair = make()
    lease, rows = pair.bench.open(), random_rows(50)
    first = pair.bench.state.limits.slots + 1
    pair.bench.extend({lease: rows}, stores={lease: ((20, first), (50, first + 1))})
    assert torch.equal(pair.bench.hidden(first), rows[1][19])
    assert torch.equal(pair.bench.hidden(first + 1), rows[1][49])
    assert torch.equal(pair.bench.hidden(lease.slot), rows[1][49])


def test_a_draft_changes_nothing_that_is_kept(make):
    pair = make()
    lease, other = pair.bench.open(), pair.bench.open()
    pair.bench.extend({lease: random_rows(65), other: random_rows(12, 8)})
    before = [pool.data[1:].clone() for pool in pair.bench.state.pools]
    kept = [tensor.clone() for tensor in pair.bench.state.recurrent_tensors()]
    first = pair.bench.draft({lease: 1, other: 2})
    again = pair.bench.draft({lease: 1, other: 2})
    assert torch.equal(first.tokens, again.tokens)
    for pool, data in zip(pair.bench.state.pools, before, strict=True):
        assert torch.equal(pool.data[1:], data)
    for tensor, data in zip(pair.bench.state.recurrent_tensors(), kept, strict=True):
        assert torch.equal(tensor, data)


def test_a_kernel_warmup_keeps_no_hidden_state(make):
    """A step is traced first, and what its ops compute is undefined then."""
    pair = make()
    lease = pair.bench.open()
    pair.feed(lease, 20)
    before = pair.bench.hidden(lease.slot)
    ops = pair.bench.loaded.ops
    ops.launches_suppressed = True
    pair.bench.verify(lease, *random_rows(3, 5), keep=[0, 1])
    pair.bench.extend({lease: random_rows(4, 6)})
    assert torch.equal(pair.bench.hidden(lease.slot), before)
    ops.launches_suppressed = False
    pair.bench.extend({lease: random_rows(4, 6)})
    assert torch.equal(pair.bench.hidden(lease.slot), random_rows(4, 6)[1][-1])


def test_sampled_drafts_follow_the_first_choice_of_each_pass(make):
    """Each pass reads the token that the noise of its position puts first."""
    pair = make()
    lease = pair.bench.open()
    pair.feed(lease, 40)
    greedy = pair.bench.draft({lease: 5}).tokens[0, :, 0].tolist()
    warm = pair.bench.draft({lease: 5}, Sampling(temperature=1.5, seed=3)).tokens[0, :, 0].tolist()
    assert warm != greedy
    rows = pair.bench.rows()
    first, tokens = pair.reference.draft(5, 1)[0], [5, *warm[:-1]]
    assert relative(rows[:1], first) <= BOUND
    hidden = pair.reference.hidden
    for step in range(1, len(tokens)):
        hidden = torch.cat([hidden, rows[step - 1 : step]])
        _, normed = pair.reference.rows([*pair.reference.tokens, *tokens[: step + 1]], hidden)
        assert relative(rows[step : step + 1], normed[-1:]) <= BOUND

"""Which drafted rows are accepted: the path of equal tokens, against a plain search."""

from __future__ import annotations

import random

import pytest
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.verify import NO_ROW, REFERENCE_ACCEPT_DRAFTS, accept_drafts, verify
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk.verify_api import Draft, VerifyStep


def draft_of(lanes, width=None):
    """DraftedSequences are (tokens, parents, budget); ``width`` adds columns of padding."""
    width = width or max(len(tokens) for tokens, _, _ in lanes)
    return Draft(
        torch.tensor([[*tokens] + [0] * (width - len(tokens)) for tokens, _, _ in lanes]),
        torch.tensor([[*parents] + [NO_ROW] * (width - len(parents)) for _, parents, _ in lanes]),
        torch.tensor([budget for _, _, budget in lanes]),
        REFERENCE_ACCEPT_DRAFTS,
    )


def chosen_of(lanes, width):
    return torch.tensor([[*row] + [0] * (width - len(row)) for row in lanes])


def search(tokens, parents, budget, chosen):
    """The same by hand: from row to the first child with the wanted token."""
    path = [0]
    while len(path) < budget:
        children = [
            row
            for row in range(len(tokens))
            if parents[row] == path[-1] and tokens[row] == chosen[path[-1]]
        ]
        if not children:
            break
        path.append(children[0])
    return path, chosen[path[-1]]


def chain(n):
    return list(range(-1, n - 1))


@pytest.mark.parametrize("right", range(6))
def test_a_chain_is_kept_up_to_the_first_wrong_token(right):
    tokens = [9, 1, 2, 3, 4, 5]
    chosen = [token if row < right else 7 for row, token in enumerate(tokens[1:])] + [6]
    kept = accept_drafts(torch.tensor([chosen]), draft_of([(tokens, chain(6), 99)]))
    assert kept.n_keep.tolist() == [right + 1]
    assert kept.path.tolist() == [[*range(right + 1)] + [-1] * (5 - right)]
    assert kept.next.tolist() == [6 if right == 5 else 7]


@pytest.mark.parametrize("budget", [1, 2, 3, 6])
def test_no_more_rows_are_kept_than_tokens_may_be_emitted(budget):
    tokens = [9, 1, 2, 3, 4, 5]
    kept = accept_drafts(torch.tensor([[*tokens[1:], 6]]), draft_of([(tokens, chain(6), budget)]))
    assert kept.n_keep.tolist() == [budget]
    assert kept.next.tolist() == [[*tokens[1:], 6][budget - 1]]


def test_a_plain_row_keeps_itself():
    kept = accept_drafts(torch.tensor([[4]]), draft_of([([9], [-1], 1)]))
    assert (kept.path.tolist(), kept.n_keep.tolist(), kept.next.tolist()) == ([[0]], [1], [4])


def test_of_equal_siblings_the_first_is_taken():
    tokens, parents = [9, 5, 5, 6, 6], [-1, 0, 0, 1, 2]
    kept = accept_drafts(torch.tensor([[5, 6, 6, 1, 2]]), draft_of([(tokens, parents, 99)]))
    assert kept.path.tolist() == [[0, 1, 3, -1, -1]]
    assert kept.next.tolist() == [1]


def test_an_equal_token_elsewhere_in_the_tree_is_no_child():
    tokens, parents = [9, 5, 6, 7], [-1, 0, 1, 1]
    kept = accept_drafts(torch.tensor([[6, 7, 7, 7]]), draft_of([(tokens, parents, 99)]))
    assert kept.n_keep.tolist() == [1]


def test_padding_is_never_walked_into():
    """Padding has token 0, and the row wants token 0."""
    kept = accept_drafts(torch.tensor([[0, 0, 0, 0]]), draft_of([([9, 0], [-1, 0], 99)], width=4))
    assert kept.path.tolist() == [[0, 1, -1, -1]]


@pytest.mark.parametrize("seed", range(30))
def test_ragged_trees_are_walked_as_by_hand(seed):
    rng = random.Random(seed)
    lanes, wanted = [], []
    for _ in range(rng.randint(1, 6)):
        size = rng.randint(1, 24)
        tokens = [rng.randrange(3) for _ in range(size)]
        parents = [-1, *(rng.randrange(row) for row in range(1, size))]
        lanes.append((tokens, parents, rng.randint(1, 8)))
        wanted.append([rng.randrange(3) for _ in range(size)])
    width = max(len(tokens) for tokens, _, _ in lanes)
    kept = accept_drafts(chosen_of(wanted, width), draft_of(lanes, width))
    for index, (lane, chosen) in enumerate(zip(lanes, wanted, strict=True)):
        path, following = search(*lane, chosen)
        assert kept.path[index].tolist() == path + [-1] * (width - len(path))
        assert int(kept.n_keep[index]) == len(path)
        assert int(kept.next[index]) == following


def test_every_row_is_sampled_with_its_own_logits():
    """Two lanes of different length; the rows of the second follow those of the first."""
    logits = torch.full((5, 10), -20.0)
    for row, token in enumerate([3, 4, 5, 6, 7]):
        logits[row, token] = 20
    rows = torch.tensor([[0, 1, 2], [3, 4, -1]])
    draft = draft_of([([9, 3, 4], chain(3), 9), ([9, 6], chain(2), 9)])
    sampling = row_sampling([RowContext(Sampling(temperature=1), i) for i in range(5)], rows.device)
    kept = verify(VerifyStep(logits, rows), draft, sampling)
    assert kept.path.tolist() == [[0, 1, 2], [0, 1, -1]]
    assert kept.next.tolist() == [5, 7]

"""What a step verifies of proposals: chains, a drafter's own trees, or the best ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kinfolk.draft_api import Proposals
from kinfolk.spec.trees import chains, trees
from kinfolk.spec.verify import NO_ROW
from kinfolk_kernels.draft_trees.op import DRAFT_TREES, DraftTreesArguments

CHANCES = [[0.57, 0.31, 0.08], [0.52, 0.33, 0.11], [0.83, 0.12, 0.03]]
TOKENS = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]


def proposals(dtype=torch.float32):
    return Proposals(torch.tensor([TOKENS]), torch.tensor([CHANCES]).log().to(dtype))


def bound(nodes):
    arguments = DraftTreesArguments(nodes, chain_seeded=False, device=torch.device("cpu"))
    return partial(DRAFT_TREES.reference, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_trees_are_those_of_the_op(dtype):
    found = trees(proposals(dtype), 7, bound(7))
    expected = [[[10, 11, 20, 30, 21, 20, 30]], [[0, 0, 1, 3, 1, 2, 5]], [7]]
    assert [part.tolist() for part in found] == expected


def test_a_drafters_own_tree_is_taken_as_it_is():
    parents = torch.tensor([[-1, -1, 0, 0, 2, 3]])
    scores = torch.tensor([[[-1.0, -2.0], [-0.1, -torch.inf], [-3.0, -1.0]]])
    stated = Proposals(torch.tensor([[[1, 2], [3, 4], [5, 6]]]), scores, parents)
    found = trees(stated, 7, bound(7))
    assert found[0].tolist() == [[1, 2, 3, 4, 5, 6, 0]]
    assert found[1].tolist() == [[0, 0, 1, NO_ROW, 3, 4, NO_ROW]]
    assert found[2].tolist() == [6]
    few = trees(stated, 3, bound(3))
    assert [part.tolist() for part in few] == [[[1, 2, 3]], [[0, 0, 1]], [3]]
    with pytest.raises(ValueError, match="proposes a tree and can draft no chain"):
        chains(stated, 2)


def test_a_chain_takes_the_first_candidates():
    assert [part.tolist() for part in chains(proposals(), 2)] == [[[10, 20]], [[0, 1]], [2]]
    with pytest.raises(ValueError, match="proposes 3 tokens, a chain of 4"):
        chains(proposals(), 4)

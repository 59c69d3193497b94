"""Trees of drafts: the most probable ones, in the order of their probability."""

from __future__ import annotations

import heapq
from itertools import product

import pytest
import torch

from kinfolk.draft_api import Proposals
from kinfolk.spec.trees import best_first_trees, chains
from kinfolk.spec.verify import NO_ROW

CHANCES = [[0.57, 0.31, 0.08], [0.52, 0.33, 0.11], [0.83, 0.12, 0.03]]
TOKENS = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]


def proposals(chances=CHANCES, tokens=TOKENS, parents=None):
    return Proposals(torch.tensor([tokens]), torch.tensor([chances]).log(), parents)


@pytest.mark.parametrize(
    ("nodes", "tokens", "parents"),
    [
        (4, [10, 11, 20, 30], [0, 0, 1, 3]),
        (7, [10, 11, 20, 30, 21, 20, 30], [0, 0, 1, 3, 1, 2, 5]),
        (
            10,
            [10, 11, 20, 30, 21, 20, 30, 30, 21, 30],
            [0, 0, 1, 3, 1, 2, 5, 6, 2, 9],
        ),
    ],
)
def test_the_published_example(nodes, tokens, parents):
    """The order of a best-first search, DDTree (arXiv 2604.12989)."""
    found = best_first_trees(proposals(), nodes)
    assert [part.tolist() for part in found] == [[tokens], [parents], [nodes]]


def searched(scores, nodes):
    """The tokens and parents of the best ``nodes`` paths, by a heap; candidates are numbered."""
    depths, columns = scores.shape
    heap, rows, order = [(0.0, 0, (), 0)], {(): 0}, []
    while heap and len(order) <= nodes:
        total, depth, path, _ = heapq.heappop(heap)
        rows[path] = len(order)
        order.append(path)
        if depth < depths:
            for column in range(columns):
                new = total - float(scores[depth, column])
                heapq.heappush(heap, (new, depth + 1, (*path, column), 0))
    return [path[-1] for path in order[1:]], [rows[path[:-1]] for path in order[1:]]


@pytest.mark.parametrize("nodes", [1, 5, 17, 63])
def test_equals_a_search_with_a_heap(nodes):
    generator = torch.Generator().manual_seed(nodes)
    lanes, depth, columns = 5, 6, 4
    scores = torch.randn(lanes, depth, columns, generator=generator).double().log_softmax(2)
    scores = scores.sort(2, descending=True).values.float()
    tokens = torch.arange(columns).expand(lanes, depth, columns)
    found = best_first_trees(Proposals(tokens, scores), nodes)
    for lane in range(lanes):
        expected = searched(scores[lane], nodes)
        assert (found[0][lane].tolist(), found[1][lane].tolist()) == expected


def test_the_first_nodes_are_the_smaller_tree():
    large = best_first_trees(proposals(), 12)
    for nodes in range(1, 12):
        small = best_first_trees(proposals(), nodes)
        assert torch.equal(small[0], large[0][:, :nodes])
        assert torch.equal(small[1], large[1][:, :nodes])


def test_of_equal_paths_the_less_deep_come_first():
    scores = torch.zeros(1, 3, 2)
    tokens = torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    found = best_first_trees(Proposals(tokens, scores), 6)
    assert found[0].tolist() == [[1, 2, 3, 3, 4, 4]]
    assert found[1].tolist() == [[0, 0, 1, 2, 1, 2]]


@pytest.mark.parametrize("none", [-torch.inf, torch.nan])
def test_candidates_without_a_score_are_none(none):
    scores = torch.tensor([[[-1.0, none], [none, none]], [[none, none], [-1.0, -2.0]]])
    tokens = torch.full((2, 2, 2), 7)
    found = best_first_trees(Proposals(tokens, scores), 5)
    assert found[0].tolist() == [[7, 0, 0, 0, 0], [0] * 5]
    assert found[1].tolist() == [[0, *[NO_ROW] * 4], [NO_ROW] * 5]
    assert found[2].tolist() == [1, 0]


def test_a_drafters_own_tree_is_taken_as_it_is():
    parents = torch.tensor([[-1, -1, 0, 0, 2, 9]])
    scores = torch.tensor([[[-1.0, -2.0], [-0.1, -torch.inf], [-3.0, -1.0]]])
    stated = Proposals(torch.tensor([[[1, 2], [3, 4], [5, 6]]]), scores, parents)
    found = best_first_trees(stated, 7)
    assert found[0].tolist() == [[1, 2, 3, 0, 5, 0, 0]]
    assert found[1].tolist() == [[0, 0, 1, NO_ROW, 3, NO_ROW, NO_ROW]]
    with pytest.raises(ValueError, match="proposes a tree and can draft no chain"):
        chains(stated, 2)


def test_a_chain_takes_the_first_candidates():
    assert [part.tolist() for part in chains(proposals(), 2)] == [[[10, 20]], [[0, 1]], [2]]
    with pytest.raises(ValueError, match="proposes 3 tokens, a chain of 4"):
        chains(proposals(), 4)


def test_trees_have_the_largest_expected_number_of_kept_rows():
    """No other tree of four nodes has more, by trying them all."""
    paths = [path for n in (1, 2, 3) for path in product(range(3), repeat=n)]

    def chance(path):
        result = 1.0
        for depth, column in enumerate(path):
            result *= CHANCES[depth][column]
        return result

    best = sum(sorted(map(chance, paths), reverse=True)[:4])
    tokens, parents, _ = (part[0].tolist() for part in best_first_trees(proposals(), 4))
    rows = [()]
    for token, parent in zip(tokens, parents, strict=True):
        rows.append((*rows[parent], token % 10))
    assert sum(map(chance, rows[1:])) == pytest.approx(best)
    assert best + 1 == pytest.approx(2.4224, abs=1e-4)

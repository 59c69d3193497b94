"""Trees of drafts: published rules in full, a heap, and all trees there are."""

from __future__ import annotations

import heapq
from itertools import combinations, product

import numpy as np
import pytest
import torch

from kinfolk_kernels.accept_drafts.op import NO_ROW, AcceptDraftsArguments, accept_drafts
from kinfolk_kernels.draft_trees import torch_backend
from kinfolk_kernels.draft_trees.op import DraftTreesArguments, draft_trees

CPU = torch.device("cpu")
SHAPES = [(1, 1, 1), (1, 5, 4), (3, 3, 7), (4, 1, 6), (5, 7, 31), (15, 8, 22), (15, 63, 63)]
"""Depths, candidates, nodes."""


def build(tokens, scores, budget, *, nodes, chain_seeded=False):
    return draft_trees(DraftTreesArguments(nodes, chain_seeded, CPU), tokens, scores, budget)


def heap_tree(tokens, scores, budget, chain_seeded):
    """One tree, as DDTree builds it: a heap has the next sibling and the first child of each node.
    Ties: depth, then rank, then the parent's row. Sums in float32."""
    depths, ranks = scores.shape
    found, sums, heap = [], [np.float32(0)], []

    def push(parent, depth, rank):
        if depth < depths and rank < ranks:
            score = sums[parent] + scores[depth, rank]
            if score > -np.inf:
                heapq.heappush(heap, (-score, depth, rank, parent))

    def add(parent, depth, rank, score):
        found.append((int(tokens[depth, rank]), parent))
        sums.append(score)
        push(parent, depth, rank + 1)
        return len(found)

    row = 0
    if chain_seeded:
        for depth in range(min(depths, budget)):
            score = sums[row] + scores[depth, 0]
            if not score > -np.inf:
                break
            row = add(row, depth, 0, score)
    if row < depths:
        push(row, row, 0)
    while heap and len(found) < budget:
        score, depth, rank, parent = heapq.heappop(heap)
        push(add(parent, depth, rank, -score), depth + 1, 0)
    return found


GOLDEN = {
    (False, 4): ("10 11 20 30", "0 0 1 3"),
    (False, 7): ("10 11 20 30 21 20 30", "0 0 1 3 1 2 5"),
    (False, 10): ("10 11 20 30 21 20 30 30 21 30", "0 0 1 3 1 2 5 6 2 9"),
    (True, 4): ("10 20 30 11", "0 1 2 0"),
    (True, 7): ("10 20 30 11 21 20 30", "0 1 2 0 1 4 5"),
    (True, 10): ("10 20 30 11 21 20 30 30 21 30", "0 1 2 0 1 4 5 6 4 9"),
}
EXPECTED_TOKENS = {
    1: (1.57, 1.57), 2: (1.88, 1.8664), 3: (2.1764, 2.1124), 4: (2.4224, 2.4224),
    7: (2.9278, 2.9278), 10: (3.2488, 3.2488),
}  # fmt: skip
"""Of budgets: best-first and chain-seeded, to four decimals."""

PROBABILITIES = torch.tensor([[[0.57, 0.31, 0.08], [0.52, 0.33, 0.11], [0.83, 0.12, 0.03]]])
TOKENS = torch.tensor([[[10, 11, 12], [20, 21, 22], [30, 31, 32]]])


@pytest.mark.parametrize(("chain_seeded", "budget"), GOLDEN)
@pytest.mark.parametrize("nodes", [10, 63])
def test_the_worked_example(nodes, chain_seeded, budget):
    budgets = torch.tensor([budget])
    found = build(TOKENS, PROBABILITIES.log(), budgets, nodes=nodes, chain_seeded=chain_seeded)
    tokens, parents = ([int(x) for x in text.split()] for text in GOLDEN[chain_seeded, budget])
    rest = nodes - budget
    assert found[0].tolist() == [tokens + [0] * rest]
    assert found[1].tolist() == [parents + [NO_ROW] * rest]
    assert found[2].tolist() == [budget]


def path_probabilities(parents, tokens, of_token):
    """The probability of the path to each node of one tree; ``of_token`` gives one node's."""
    found = {0: (1.0, 0)}
    for row, (parent, token) in enumerate(zip(parents, tokens, strict=True), 1):
        probability, depth = found[parent]
        found[row] = (probability * of_token(depth, token), depth + 1)
    return [probability for row, (probability, _) in found.items() if row]


@pytest.mark.parametrize("budget", EXPECTED_TOKENS)
@pytest.mark.parametrize("chain_seeded", [False, True])
def test_expected_tokens_of_the_worked_example(budget, chain_seeded):
    tokens, parents, _ = build(
        TOKENS,
        PROBABILITIES.log(),
        torch.tensor([budget]),
        nodes=budget,
        chain_seeded=chain_seeded,
    )
    of = dict(zip(TOKENS.flatten().tolist(), PROBABILITIES.flatten().tolist(), strict=True))
    sums = path_probabilities(parents[0].tolist(), tokens[0].tolist(), lambda _, token: of[token])
    assert 1 + sum(sums) == pytest.approx(EXPECTED_TOKENS[budget][chain_seeded], abs=5e-5)


@pytest.mark.parametrize("chain_seeded", [False, True])
@pytest.mark.parametrize(("depths", "ranks", "nodes"), SHAPES)
def test_is_the_tree_of_a_heap(candidates, depths, ranks, nodes, chain_seeded):
    for seed in range(3):
        tokens, scores, budgets = candidates(seed, depths, ranks, nodes)
        found = build(tokens, scores, budgets, nodes=nodes, chain_seeded=chain_seeded)
        for at, (trees, parents, count) in enumerate(
            zip(*(x.tolist() for x in found), strict=True)
        ):
            budget = min(int(budgets[at]), nodes)
            right = heap_tree(tokens[at], scores[at].numpy(), budget, chain_seeded)
            assert count == len(right)
            assert list(zip(trees, parents, strict=True))[:count] == right
            assert trees[count:] == [0] * (nodes - count)
            assert parents[count:] == [NO_ROW] * (nodes - count)


@pytest.mark.parametrize("chain_seeded", [False, True])
def test_every_size_is_the_tree_of_a_heap(candidates, chain_seeded):
    for nodes in range(1, 64):
        tokens, scores, _ = candidates(nodes, 7, 5, nodes)
        budgets = torch.full((6,), nodes)
        trees, parents, counts = build(
            tokens, scores, budgets, nodes=nodes, chain_seeded=chain_seeded
        )
        right = heap_tree(tokens[1], scores[1].numpy(), nodes, chain_seeded)
        assert counts[1] == nodes
        assert list(zip(trees[1].tolist(), parents[1].tolist(), strict=True)) == right


@pytest.mark.parametrize("chain_seeded", [False, True])
@pytest.mark.parametrize(("depths", "ranks"), [(1, 1), (4, 1), (7, 5), (15, 63)])
def test_the_form_for_the_cpu_equals_the_reference(candidates, depths, ranks, chain_seeded):
    for nodes in range(1, 64, 2):
        given = candidates(nodes, depths, ranks, nodes)
        arguments = DraftTreesArguments(nodes, chain_seeded, CPU)
        found, expected = (
            torch_backend.draft_trees(arguments, *given),
            draft_trees(arguments, *given),
        )
        for part, right in zip(found, expected, strict=True):
            assert torch.equal(part, right)


def all_trees(depths, ranks, size):
    """Every tree of ``size`` nodes, as sets of paths, each of which has its beginnings with it."""
    paths = [p for d in range(1, depths + 1) for p in product(range(ranks), repeat=d)]
    for chosen in combinations(paths, size):
        tree = set(chosen)
        if all(path[:-1] in tree for path in chosen if len(path) > 1):
            yield tree


@pytest.mark.parametrize("chain_seeded", [False, True])
@pytest.mark.parametrize(("depths", "ranks", "most"), [(3, 2, 6), (2, 3, 6), (4, 1, 4), (1, 4, 4)])
def test_no_tree_is_more_probable(depths, ranks, most, chain_seeded):
    generator = torch.Generator().manual_seed(depths)
    scores, _ = torch.randn(1, depths, ranks + 1, generator=generator).log_softmax(2).topk(ranks)
    tokens = torch.arange(depths * ranks).view(1, depths, ranks)
    probability = scores[0].double().exp().tolist()
    for budget in range(1, most + 1):
        budgets = torch.tensor([budget])
        found, parents, _ = build(tokens, scores, budgets, nodes=budget, chain_seeded=chain_seeded)
        mine = path_probabilities(
            parents[0].tolist(), found[0].tolist(), lambda d, t: probability[d][t % ranks]
        )
        chain = {(0,) * d for d in range(1, min(depths, budget) + 1)}
        best = max(
            sum(np.prod([probability[d][r] for d, r in enumerate(path)]) for path in tree)
            for tree in all_trees(depths, ranks, budget)
            if not chain_seeded or chain <= tree
        )
        assert sum(mine) == pytest.approx(best, rel=1e-6)


def test_equal_sums_go_by_depth_then_rank_then_parent():
    tokens = torch.tensor([[[1, 2, 3], [4, 5, 6]]])
    budgets = torch.tensor([12])
    found, parents, _ = build(tokens, torch.zeros(1, 2, 3), budgets, nodes=12)
    assert found.tolist() == [[1, 2, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]]
    assert parents.tolist() == [[0, 0, 0, 1, 2, 3, 1, 2, 3, 1, 2, 3]]


def test_a_chain_ends_where_candidates_do():
    scores = torch.zeros(1, 4, 2)
    scores[0, 2] = -torch.inf
    tokens = torch.arange(8).view(1, 4, 2)
    found, parents, counts = build(tokens, scores, torch.tensor([9]), nodes=9, chain_seeded=True)
    assert counts.tolist() == [6]
    assert found.tolist() == [[0, 2, 1, 2, 3, 3, 0, 0, 0]]
    assert parents.tolist() == [[0, 1, 0, 3, 1, 3] + [NO_ROW] * 3]


def test_without_any_candidate_there_is_no_tree():
    scores = torch.full((2, 3, 2), torch.nan)
    found, parents, counts = build(
        torch.ones(2, 3, 2, dtype=torch.int64), scores, torch.tensor([5, 5]), nodes=5
    )
    assert counts.tolist() == [0, 0]
    assert (found == 0).all()
    assert (parents == NO_ROW).all()


def test_the_first_nodes_are_the_tree_of_a_smaller_budget(candidates):
    tokens, scores, _ = candidates(3, 6, 5, 40)
    whole = build(tokens, scores, torch.full((6,), 40), nodes=40)
    for budget in range(41):
        part = build(tokens, scores, torch.full((6,), budget), nodes=40)
        assert torch.equal(part[2], whole[2].clamp_max(budget))
        assert torch.equal(part[0][:, :budget], whole[0][:, :budget])
        assert torch.equal(part[1][:, :budget], whole[1][:, :budget])


def test_sequences_do_not_see_each_other(candidates):
    given = candidates(4, 5, 6, 30)
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    found = build(*given, nodes=30)
    for part, right in zip(build(*(x[order] for x in given), nodes=30), found, strict=True):
        assert torch.equal(part, right[order])


def test_the_tree_is_one_that_drafts_are_accepted_from(candidates):
    tokens, scores, _ = candidates(5, 5, 4, 30)
    trees, parents, counts = build(tokens[1:2], scores[1:2], torch.tensor([30]), nodes=30)
    rows = torch.cat([torch.tensor([[77]]), trees], 1)
    above = torch.cat([torch.tensor([[-1]]), parents], 1)
    for row in range(1, 1 + int(counts)):
        path = [row]
        while path[0]:
            path.insert(0, int(above[0, path[0]]))
        chosen = torch.full_like(rows, -5)
        chosen[0, path[:-1]] = rows[0, path[1:]]
        kept, length, _ = accept_drafts(
            AcceptDraftsArguments(CPU), chosen, rows, above, torch.tensor([99])
        )
        assert kept[0, : int(length)].tolist() == path


@pytest.mark.parametrize("nodes", [0, 64])
def test_a_tree_that_no_path_can_hold_is_refused(nodes):
    with pytest.raises(ValueError, match=f"trees of {nodes} drafted tokens: 1 to 63"):
        DraftTreesArguments(nodes, False, CPU)

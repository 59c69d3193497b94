"""The kernel that builds trees of drafts, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.draft_trees import triton_backend as kernel
from kinfolk_kernels.draft_trees.op import DraftTreesArguments, draft_trees

CPU = torch.device("cpu")
SHAPES = [(1, 1, 1), (1, 5, 4), (3, 3, 7), (4, 1, 6), (5, 7, 31), (15, 8, 22), (15, 63, 63)]
"""Depths, candidates, nodes."""

pytestmark = pytest.mark.interpreter


def assert_equals_the_reference(arguments, given):
    expected = draft_trees(arguments, *given)
    found = [torch.full_like(part, -12345) for part in expected]
    kernel.build(arguments, *given, *found).run()
    for part, right in zip(found, expected, strict=True):
        assert torch.equal(part, right)


@pytest.mark.parametrize("chain_seeded", [False, True])
@pytest.mark.parametrize(("depths", "ranks", "nodes"), SHAPES)
def test_equals_the_reference(candidates, depths, ranks, nodes, chain_seeded):
    given = candidates(nodes, depths, ranks, nodes)
    assert_equals_the_reference(DraftTreesArguments(nodes, chain_seeded, CPU), given)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 62, 63])
def test_sizes_beside_powers_of_two_equal_the_reference(candidates, nodes):
    tokens, scores, _ = candidates(nodes, 7, 5, nodes)
    given = tokens[1:2], scores[1:2], torch.tensor([nodes])
    assert_equals_the_reference(DraftTreesArguments(nodes, nodes % 3 == 0, CPU), given)


def test_sequences_do_not_see_each_other(candidates):
    arguments = DraftTreesArguments(30, False, CPU)
    given = candidates(4, 5, 6, 30)
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    found = kernel.draft_trees(arguments, *given)
    shuffled = kernel.draft_trees(arguments, *(x[order] for x in given))
    for part, right in zip(shuffled, found, strict=True):
        assert torch.equal(part, right[order])


def test_equal_sums_go_by_depth_then_rank_then_parent():
    given = torch.tensor([[[1, 2, 3], [4, 5, 6]]]), torch.zeros(1, 2, 3), torch.tensor([12])
    found, parents, _ = kernel.draft_trees(DraftTreesArguments(12, False, CPU), *given)
    assert found.tolist() == [[1, 2, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]]
    assert parents.tolist() == [[0, 0, 0, 1, 2, 3, 1, 2, 3, 1, 2, 3]]


def test_the_interpreter_supports_any_device():
    assert kernel.supports(DraftTreesArguments(5, True, CPU))

"""Trees of drafts and the rows that they become, on the GPU: the integers of the references."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from kinfolk_kernels.draft_trees import triton_backend as draft_trees_kernel
from kinfolk_kernels.draft_trees.op import DraftTreesArguments, draft_trees
from kinfolk_kernels.place_drafts import triton_backend as place_drafts_kernel
from kinfolk_kernels.place_drafts.op import PlaceDraftsArguments, StoredDrafts, place_drafts

CPU, GPU = torch.device("cpu"), torch.device("cuda")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize("chain_seeded", [False, True])
@pytest.mark.parametrize(("depths", "ranks"), [(1, 1), (4, 1), (7, 5), (15, 8), (15, 63)])
def test_trees_of_every_size_equal_the_reference(candidates, poisoned, depths, ranks, chain_seeded):
    for nodes in range(1, 64):
        given = candidates(nodes, depths, ranks, nodes)
        expected = draft_trees(DraftTreesArguments(nodes, chain_seeded, CPU), *given)
        arguments = DraftTreesArguments(nodes, chain_seeded, GPU)
        with poisoned():
            found = draft_trees_kernel.draft_trees(arguments, *(part.cuda() for part in given))
        for part, right in zip(found, expected, strict=True):
            assert torch.equal(part.cpu(), right)


def assert_placed(stored, spans, context, start, rows, on_gpu):
    operands = on_gpu(stored), spans.cuda(), context.cuda(), start.cuda(), on_gpu(rows)
    place_drafts_kernel.place_drafts(PlaceDraftsArguments(50, GPU), *operands)
    place_drafts(PlaceDraftsArguments(50, CPU), stored, spans, context, start, rows)
    for field in fields(rows):
        found = getattr(operands[-1], field.name)
        assert torch.equal(found.cpu(), getattr(rows, field.name)), field.name


@pytest.mark.parametrize("most", [1, 2, 5, 16, 22, 31, 63])
@pytest.mark.parametrize("seed", range(6))
def test_placed_drafts_equal_the_reference(placements, on_gpu, seed, most):
    assert_placed(*placements(seed, most), on_gpu)


def test_trees_are_placed_right_behind_the_launch_that_builds_them(candidates, placements, on_gpu):
    """Only the kernels' own waits order two launches that may overlap."""
    for seed in range(20):
        given = [part.repeat(2, *[1] * (part.dim() - 1)) for part in candidates(seed, 15, 8, 22)]
        tokens, parents, counts = draft_trees(DraftTreesArguments(22, False, CPU), *given)
        stored, spans, context, start, rows = placements(seed, 22)
        on_device = [part.cuda() for part in given]
        operands = spans.cuda(), context.cuda(), start.cuda(), on_gpu(rows)
        pending = stored.pending.cuda()
        torch.cuda.synchronize()
        built = draft_trees_kernel.draft_trees(DraftTreesArguments(22, False, GPU), *on_device)
        drafts = StoredDrafts(pending, *built)
        place_drafts_kernel.place_drafts(PlaceDraftsArguments(50, GPU), drafts, *operands)
        expected = StoredDrafts(stored.pending, tokens, parents, counts)
        place_drafts(PlaceDraftsArguments(50, CPU), expected, spans, context, start, rows)
        for field in fields(rows):
            assert torch.equal(getattr(operands[-1], field.name).cpu(), getattr(rows, field.name))


def test_a_graph_places_what_slots_have_stored_since(placements, on_gpu):
    arguments = PlaceDraftsArguments(50, GPU)
    stored, spans, context, start, rows = placements(0, 22)
    operands = on_gpu(stored), spans.cuda(), context.cuda(), start.cuda(), on_gpu(rows)
    place_drafts_kernel.place_drafts(arguments, *operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        place_drafts_kernel.place_drafts(arguments, *operands)
    other = placements(9, 22)[0]
    for field in fields(other):
        getattr(operands[0], field.name).copy_(getattr(other, field.name))
    graph.replay()
    place_drafts(PlaceDraftsArguments(50, CPU), other, spans, context, start, rows)
    for field in fields(rows):
        assert torch.equal(getattr(operands[-1], field.name).cpu(), getattr(rows, field.name))

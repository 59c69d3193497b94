"""The kernel that fills the rows of drafted sequences, against the reference."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from kinfolk_kernels.draft_trees import triton_backend as trees
from kinfolk_kernels.draft_trees.op import DraftTreesArguments
from kinfolk_kernels.place_drafts import triton_backend as kernel
from kinfolk_kernels.place_drafts.op import PlaceDraftsArguments, StoredDrafts, place_drafts

CPU = PlaceDraftsArguments(50, torch.device("cpu"))

pytestmark = pytest.mark.interpreter


def assert_equals_the_reference(arguments, stored, spans, context, start, rows):
    expected = replace(rows, **{f.name: getattr(rows, f.name).clone() for f in fields(rows)})
    place_drafts(arguments, stored, spans, context, start, expected)
    kernel.place_drafts(arguments, stored, spans, context, start, rows)
    for field in fields(rows):
        assert torch.equal(getattr(rows, field.name), getattr(expected, field.name)), field.name


@pytest.mark.parametrize("most", [1, 2, 5, 16, 22, 31, 63])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_reference(placements, seed, most):
    assert_equals_the_reference(CPU, *placements(seed, most))


def test_trees_that_were_just_built(candidates, placements):
    arguments = PlaceDraftsArguments(100, torch.device("cpu"))
    for chain_seeded in (False, True):
        tokens, scores, budget = (
            x.repeat(2, *[1] * (x.dim() - 1)) for x in candidates(0, 6, 5, 22)
        )
        built = DraftTreesArguments(22, chain_seeded, torch.device("cpu"))
        found = trees.draft_trees(built, tokens, scores, budget)
        stored, *given = placements(1, 22)
        assert_equals_the_reference(arguments, StoredDrafts(stored.pending, *found), *given)


def test_the_interpreter_supports_any_device():
    assert kernel.supports(CPU)

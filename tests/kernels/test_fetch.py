"""Fetching experts, by the reference and in torch, against a plain model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fetch_model import FetchModel, Scene, assert_follows, scenes
from hypothesis import given

from kinfolk_kernels.fetch import op as reference
from kinfolk_kernels.fetch import torch_backend as fast

BACKENDS = pytest.mark.parametrize("backend", [reference, fast], ids=["ref", "torch"])


@BACKENDS
@given(scene=scenes())
def test_every_step_does_what_the_plain_model_does(backend, scene):
    assert_follows(backend.fetch, scene)


def layer(bays=2, pinned=0, seed=0, experts=6):
    return FetchModel(Scene(experts, bays, pinned, 2, 0.5, seed, ()))


@BACKENDS
def test_the_one_with_the_least_score_leaves_and_of_equals_the_least_id(backend):
    model = layer(bays=3)
    model.where, model.owner = [2, "far", 0, 1, "far", "far"], [2, 3, 0]
    model.score = [4.0, 0.0, 2.0, 2.0, 1.0, 0.0]
    arguments = model.arguments()
    arguments.rows.fill_(1)
    backend.fetch(arguments, torch.tensor([[4, 1]]))
    # Expert 4 has the larger score and takes the bay of 2; expert 1 that of 3.
    assert arguments.bay_of_expert.tolist() == [2, 1, 3 + 2, 3 + 3, 0, 3 + 5]
    assert arguments.expert_of_bay.tolist() == [4, 1, 0]


@BACKENDS
def test_pinned_bays_and_those_of_chosen_experts_stay(backend):
    model = layer(bays=2, pinned=1)
    model.where, model.owner = [0, 1, "far", "far", "far", "far"], [0, 1]
    arguments = model.arguments()
    arguments.rows.fill_(1)
    backend.fetch(arguments, torch.tensor([[1, 2]]))
    assert arguments.expert_of_bay.tolist() == [0, 1]
    assert (arguments.traffic - torch.tensor(model.traffic)).tolist() == [1, 0, 1]
    backend.fetch(arguments, torch.tensor([[2, 3]]))
    assert arguments.expert_of_bay[0] == 0
    assert arguments.expert_of_bay[1] in (2, 3)


@BACKENDS
def test_records_may_be_views_of_a_larger_arena(backend):
    model = layer(bays=2, seed=3)
    made = model.arguments()
    parts = made.near, made.far
    arenas = [torch.zeros(len(part), 3 * 64, dtype=torch.uint8) for part in parts]
    near, far = (arena[:, 64:112].copy_(p) for arena, p in zip(arenas, parts, strict=True))
    arguments = replace(made, near=near, far=far)
    ids = torch.tensor([[0, 1], [2, 3]])
    for given_ids in (ids, ids + 2):
        arguments.rows.fill_(2)
        backend.fetch(arguments, given_ids)
        model.step(given_ids, 2)
        model.check(arguments)
    assert not any(arena[:, :64].any() or arena[:, 112:].any() for arena in arenas)

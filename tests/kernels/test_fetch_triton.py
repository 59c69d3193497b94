"""The kernel that fetches experts, against the plain model and the reference."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from fetch_model import FetchModel, Scene, assert_follows, few_programs, scenes
from hypothesis import given, settings

from kinfolk_kernels.fetch import op as reference
from kinfolk_kernels.fetch import triton_backend as kernel

pytestmark = pytest.mark.interpreter

_few_programs = few_programs(kernel)


@settings(max_examples=settings.default.max_examples // 4)
@given(scene=scenes(steps=4))
def test_every_step_does_what_the_plain_model_does(scene):
    assert_follows(kernel.fetch, scene)


@pytest.mark.parametrize(
    ("experts", "bays", "rows", "top_k"), [(256, 128, 1, 8), (256, 200, 16, 8), (100, 40, 70, 6)]
)
def test_sizes_of_models_give_the_numbers_of_the_reference(experts, bays, rows, top_k):
    model = FetchModel(Scene(experts, bays, 10, top_k, 0.99, rows, ((rows, rows),)))
    found = model.arguments()
    expected = copy.deepcopy(found)
    generator = torch.Generator().manual_seed(1)
    for step in range(2):
        ids = torch.rand(rows, experts, generator=generator).pow(3).argsort(1)[:, :top_k]
        for arguments, run in ((found, kernel.fetch), (expected, reference.fetch)):
            arguments.rows.fill_(rows - step)
            run(arguments, ids)
        for field in fields(found):
            a, b = getattr(found, field.name), getattr(expected, field.name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name
    assert found.traffic[1] > 0


@pytest.mark.parametrize("real", [9, torch.iinfo(torch.int32).max])
def test_the_last_program_resets_the_counter_and_rows_beyond_the_array_are_not_read(
    real, monkeypatch
):
    """Two of the programs have nothing to copy."""
    monkeypatch.setattr(kernel, "FETCH_PROGRAMS", 5)
    model = FetchModel(Scene(8, 4, 0, 2, 0.99, 0, ()))
    arguments = model.arguments()
    arguments.rows.fill_(real)
    ids = torch.tensor([[0, 1], [2, 3]])
    kernel.fetch(arguments, ids)
    model.step(ids, 2)
    model.check(arguments)
    assert not kernel.counters(ids.device).any()


def test_an_expert_leaves_after_the_empty_bay_of_its_number_is_taken():
    """Both are candidates in one element of the kernel's arrays."""
    model = FetchModel(Scene(6, 3, 0, 2, 0.5, 1, ()))
    model.where, model.owner = [1, 2, "far", "far", "far", "far"], [None, 0, 1]
    model.score = [np.float32(score) for score in (0.5, 2, 0, 0, 0, 0)]
    arguments = model.arguments()
    arguments.rows.fill_(1)
    ids = torch.tensor([[4, 3]])
    kernel.fetch(arguments, ids)
    model.step(ids, 1)
    model.check(arguments)
    assert arguments.expert_of_bay.tolist() == [3, 4, 1]


def test_it_says_what_it_cannot():
    made = FetchModel(Scene(8, 4, 0, 2, 0.99, 0, ())).arguments()

    def reason(**changes):
        return kernel.supports(replace(made, **changes)).reason

    assert reason() == ""
    assert reason(near=made.near[:0]) == ""
    assert "not torch.int32 on cpu" in reason(expert_of_bay=made.expert_of_bay.long())
    assert "score is torch.float64" in reason(score=made.score.double())
    assert "not contiguous" in reason(uses=made.uses.repeat_interleave(2)[::2])
    assert "at home of [32]" in reason(far=made.far[:, :32])
    assert "no multiple of 16" in reason(near=made.near[:, 3:35], far=made.far[:, :32])
    assert "no multiple of 16" in reason(near=made.near[:, :40], far=made.far[:, :40])
    assert "more than 1024" in reason(far=made.far[:1].expand(1025, 48))
    elsewhere = made.far.to("meta")
    assert "meta that cpu cannot read" in reason(far=elsewhere)

"""The kernel that lands experts, against the plain model, and with the products that follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fetch_model import FetchModel, Scene, assert_lands, few_programs, land_arguments, scenes
from hypothesis import given, settings

from kinfolk_kernels.land import triton_backend as kernel

pytestmark = pytest.mark.interpreter

_few_programs = few_programs(kernel)


@settings(max_examples=settings.default.max_examples // 4)
@given(scene=scenes(steps=4))
def test_what_rows_chose_and_is_far_lands_and_nothing_else_changes(scene):
    assert_lands(kernel.land, scene)


@pytest.mark.parametrize("rows", [16, 70])
def test_so_it_does_in_sizes_of_models(rows):
    assert_lands(kernel.land, Scene(256, 100, 0, 8, 0.99, rows, ((rows, rows - 1),)))


def test_a_map_with_more_far_experts_than_bays_writes_nothing_behind_them():
    """As after a step that failed in the middle, before the map is mended."""
    model = FetchModel(Scene(8, 5, 0, 2, 0.99, 0, ()))
    made = land_arguments(model.arguments(), spare=2)
    made.bay_of_expert.copy_(5 + torch.arange(8))
    made.rows.fill_(3)
    behind = made.landing.clone()
    short = replace(made, landing=made.landing[:3])
    assert kernel.supports(short)
    kernel.land(short, torch.tensor([[0, 1], [2, 3], [4, 5]]))
    assert made.landed.tolist() == [5, 6, 7, -1, -1, -1, -1, -1]
    assert torch.equal(made.landing[3:], behind[3:])


def test_it_says_what_it_cannot():
    made = land_arguments(FetchModel(Scene(8, 4, 0, 2, 0.99, 0, ())).arguments())

    def reason(**changes):
        return kernel.supports(replace(made, **changes)).reason

    assert reason() == ""
    assert "landed is torch.int32 on cpu" in reason(landed=made.landed.int())
    assert "not contiguous" in reason(landed=made.landed.repeat_interleave(2)[::2])
    assert "3 landing bays for 8 experts in 4 near bays" in reason(landing=made.landing[:3])
    assert "at home of [32]" in reason(far=made.far[:, :32])
    assert "no multiple of 16" in reason(landing=made.landing[:, :40], far=made.far[:, :40])
    assert "more than 1024" in reason(far=made.far[:1].expand(1025, 48))
    assert "meta that cpu cannot read" in reason(far=made.far.to("meta"))

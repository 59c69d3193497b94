"""Launches for far experts: one compiled kernel serves all layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from expert_records import RecordLayout

from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import group_launches
from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts
from kinfolk_kernels.experts.pair_launches import pair_launches
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.fetch.triton_backend import fetch_launch
from kinfolk_kernels.fetch_experts.triton_backend import fetch_gate_up
from kinfolk_kernels.land.op import LandArguments
from kinfolk_kernels.land.triton_backend import land_launch
from kinfolk_kernels.packing import empty

COUNT, CHANNELS, WIDTH = 16, 256, 256


def stack(name, rows, columns, count=COUNT):
    return empty(name, count * rows, columns, "cpu").stacked(count)


def layer(bays, lower, between):
    """A layer with ``bays`` near bays, in memory that begins ``between`` bytes behind other
    memory."""
    gate, up, down = (
        stack("Q4_K", CHANNELS, WIDTH),
        stack("Q4_K", CHANNELS, WIDTH),
        stack(lower, WIDTH, CHANNELS),
    )
    layout = RecordLayout.of((gate, up, down))
    near, far = (layout.arena(count) for count in (bays, COUNT))
    if bays:
        near = layout.arena(bays + 1).flatten()[between:][: near.numel()].view(near.shape)
    rows = torch.ones(1, dtype=torch.int32)
    made = ExpertsArguments(
        *layout.stacks(near),
        torch.arange(COUNT),
        "silu",
        2,
        torch.float16,
        far=FarExperts(*layout.stacks(far)),
        rows=rows,
    )
    state = (torch.zeros(COUNT), torch.zeros(COUNT).long(), torch.zeros(3).long(), rows)
    owners = torch.zeros(bays, dtype=torch.int32)
    return made, FetchArguments(near, far, made.bay_of_expert, owners, *state)


def landing(fetch, bays):
    """The layer's landing bays: the first of those that all layers share."""
    records = torch.empty(max(2, COUNT - bays), fetch.far.shape[1], dtype=torch.uint8)
    landed = torch.empty(COUNT, dtype=torch.int64)
    return LandArguments(fetch.far, records, fetch.bay_of_expert, landed, fetch.rows, bays)


def compiled_for(launch):
    """What Triton compiles a launch for: types and constants, and of the numbers and addresses that
    it looks at whether they are one or multiples of 16."""
    known = {}
    for name, value in launch.arguments.items():
        if isinstance(value, torch.Tensor):
            known[name] = (value.dtype, value.data_ptr() % 16)
        elif name in launch.kernel.do_not_specialize:
            known[name] = (type(value), -(2**31) <= value < 2**31)
        else:
            known[name] = (type(value), value == 1, value % 16 == 0)
    return launch.kernel.__name__, known, dict(launch.constants), launch.options


@pytest.mark.parametrize("rows", [1, 4, 40, 300])
def test_neither_bays_nor_records_nor_distances_are_compiled_in(rows):
    """Gate and up are the same in all layers, while down has two formats, as in published files."""
    found, fused = [], []
    layers = ((0, "Q6_K", 0), (1, "Q4_K", 256), (7, "Q6_K", 512), (16, "Q6_K", 0))
    for bays, lower, between in layers:
        made, fetch = layer(bays, lower, between)
        x = torch.zeros(rows, WIDTH, dtype=torch.float16)
        choice = Choice(torch.zeros(rows, 2, dtype=torch.int64), torch.zeros(rows, 2))
        product = pair_launches if rows <= 4 else group_launches
        launches = product(x, choice, made, torch.zeros(rows, WIDTH))
        moves = fetch_launch(fetch, choice.ids), land_launch(landing(fetch, bays), choice.ids)
        found.append([compiled_for(one) for one in (*launches, *moves)])
        if rows == 1 and bays:
            fetching = partial(fetch_gate_up, fetch=fetch)
            first, *_ = pair_launches(x, choice, made, x.float(), gate_up=fetching)
            fused.append(compiled_for(first))
    for other in found[1:]:
        for mine, first in zip(other, found[0], strict=True):
            if "down" not in mine[0] and "round" not in mine[0]:
                assert mine == first
    # Where down has the same format, so it is for all launches.
    assert found[0] == found[2] == found[3]
    assert all(one == fused[0] for one in fused)


def test_the_check_sees_what_is_compiled_in():
    _, fetch = layer(3, "Q6_K", 0)
    launch = fetch_launch(fetch, torch.zeros(1, 2, dtype=torch.int64))
    odd = replace(launch, arguments={**launch.arguments, "far_step": 12})
    assert compiled_for(odd) != compiled_for(launch)
    assert compiled_for(replace(launch, arguments={**launch.arguments, "bays": 1})) == compiled_for(
        launch
    )

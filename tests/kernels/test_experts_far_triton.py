"""The experts' kernels with far bays, absent experts and padding rows, against the same kernels
where every expert is near."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_records import RecordLayout, landing, some, spread

from kinfolk_kernels.experts import pair_launches as pair
from kinfolk_kernels.experts import triton_backend as kernels
from kinfolk_kernels.experts.bays import unreadable
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import group_launches
from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts, SharedExpert
from kinfolk_kernels.int8_rows import quantize
from kinfolk_kernels.land import triton_backend as landings
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

EXPERTS, TOP_K = 6, 2
GROUPS = 6
"""Rows for which pairs of an expert are computed together here, instead of 33."""


@pytest.fixture(autouse=True)
def _large_programs(monkeypatch):
    """The interpreter's time for a program hardly depends on the work in that program."""
    monkeypatch.setattr(kernels, "PAIRED_ROWS", GROUPS - 1)
    monkeypatch.setattr(pair, "QUADS", 16)
    monkeypatch.setattr(pair, "DOWN_QUADS", 4)
    monkeypatch.setattr(landings, "FETCH_PROGRAMS", 3)


@pytest.fixture
def full(random_planes):
    """``full(upper, lower, dtype=)``: a layer where every expert is in a near bay; formats "plain"
    are numbers of ``dtype``."""

    def stack(name, rows, columns, seed, dtype):
        if name == "plain":
            generator = torch.Generator().manual_seed(seed)
            numbers = torch.randn(EXPERTS, rows, columns, generator=generator) / columns**0.5
            return numbers.to(dtype)
        planes = random_planes(name, EXPERTS * rows, columns, seed)
        size = float(unpack(planes).std()) * columns**0.5
        supers = (planes.supers.view(torch.float16) / size).view(torch.int32)
        return replace(planes, supers=supers).stacked(EXPERTS)

    def make(upper="Q4_0", lower="Q8_0", dtype=torch.float16):
        width, channels = (
            256 if name in LAYOUTS and LAYOUTS[name].block == 256 else 64 for name in (upper, lower)
        )
        gate, up = (stack(upper, channels, width, seed, dtype) for seed in (1, 2))
        down = stack(lower, width, channels, 3, dtype)
        bays = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(5))
        return ExpertsArguments(gate, up, down, bays, "silu", TOP_K, dtype)

    return make


def step(layer, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, layer.width, generator=generator).clamp(-4, 4).to(layer.dtype)
    ids = torch.rand(rows, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].contiguous()
    return x, ids, torch.rand(rows, TOP_K, generator=generator)


def run(layer, operands):
    assert kernels.supports(layer), kernels.supports(layer).reason
    return kernels.experts(layer, *operands)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_pair_of_a_far_expert_gives_the_bits_of_a_near_one_in_every_format(full, name):
    """A row alone, one product after the other."""
    made = full(name, "Q8_0")
    x, ids, weights = step(made, 1)
    chosen, owners = Choice(ids, weights), [None, int(ids[0, 1])]

    def inner(layer):
        parts = pair.Inner.make(chosen, layer)
        pair.gate_up_pairs(x, quantize(x), chosen, layer, parts, asm=False).run()
        return parts

    assert torch.equal(inner(spread(made, owners)).pairs, inner(made).pairs)
    made = full("Q8_0", name)
    between = pair.Inner(torch.randn(TOP_K, made.channels).clamp(-4, 4), x, x)
    found = []
    for layer in (spread(made, owners), made):
        found.append(torch.full((1, made.width), torch.nan))
        pair.down_pairs(between, chosen, layer, found[-1], asm=False).run()
    assert torch.equal(*found)


@pytest.mark.parametrize("name", LAYOUTS)
def test_so_do_pairs_of_an_expert_together(full, name):
    for made in (full(name, "Q8_0"), full("Q8_0", name)):
        x, ids, weights = step(made, 3)
        found = []
        for layer in (spread(made, [None, int(ids[0, 1]), int(ids[1, 0])]), made):
            found.append(torch.full(x.shape, torch.nan))
            for launch in group_launches(x, Choice(ids, weights), layer, found[-1]):
                launch.run()
        assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_and_in_plain_numbers(full, dtype):
    made = full("plain", "plain", dtype)
    operands = step(made, 5)
    for bays in (0, 2):
        layer = spread(made, some(EXPERTS, bays, 1))
        assert torch.equal(run(layer, operands), run(made, operands))


@pytest.mark.parametrize(
    ("rows", "numbers_of_bays"),
    [(1, (0, 1, 2, 3, 5, 6)), (3, (0,)), (GROUPS, (0, 1, 2, 3, 5, 6))],
)
def test_any_number_of_bays_gives_the_same_bits(full, rows, numbers_of_bays):
    made = full()
    operands = step(made, rows)
    expected = run(made, operands)
    for bays in numbers_of_bays:
        layer = spread(made, some(EXPERTS, bays, bays))
        assert torch.equal(run(layer, operands), expected), bays


@pytest.mark.parametrize(("rows", "bays"), [(2, 2), (GROUPS, 0), (GROUPS, 5)])
def test_so_do_experts_that_land_before(full, rows, bays):
    """Bays that nothing lands in, absent experts and padding rows are not read."""
    made, real, absent = full("Q5_0", "Q4_0"), rows - 1, [4]
    x, ids, weights = step(made, rows)
    without = torch.where(torch.isin(ids, torch.tensor(absent)), 0.0, weights)
    expected = run(made, (x, ids, without))
    ids[real:], weights[real:] = 10**6, torch.nan
    layer = spread(made, [1, 3, 0, 2, 5][:bays], absent=absent)
    layer, brings = landing(replace(layer, rows=torch.tensor([real], dtype=torch.int32)))
    assert landings.supports(brings), landings.supports(brings).reason
    landings.land(brings, ids)
    found = run(layer, (x, ids, weights))
    assert torch.equal(found[:real], expected[:real])
    assert not found[real:].any()


@pytest.mark.parametrize("rows", [1, 3, GROUPS, 600])
def test_absent_experts_and_padding_rows_are_not_read(full, rows):
    made, top_k = full("Q5_0", "Q4_0"), 1 if rows == 600 else TOP_K
    made = replace(made, top_k=top_k)
    x, ids, weights = step(made, rows)
    ids, weights = ids[:, :top_k].contiguous(), weights[:, :top_k].contiguous()
    absent, real = [0, 4], rows - rows // 3
    without = torch.where(torch.isin(ids, torch.tensor(absent)), 0.0, weights)
    expected = run(made, (x, ids, without))
    ids[real:], weights[real:] = 10**6, torch.nan
    layer = spread(made, some(EXPERTS, 2, 3), absent=absent)
    layer = replace(layer, rows=torch.tensor([real], dtype=torch.int32))
    found = run(layer, (x, ids, weights))
    assert torch.equal(found[:real], expected[:real])
    assert not found[real:].any()


@pytest.mark.parametrize("rows", [2, GROUPS])
def test_padding_rows_are_not_read_where_every_expert_is_near(full, rows):
    made, real = full(), rows - 1
    x, ids, weights = step(made, rows)
    expected = run(made, (x, ids, weights))
    ids[real:], weights[real:] = 10**6, torch.nan
    found = run(replace(made, rows=torch.tensor([real], dtype=torch.int32)), (x, ids, weights))
    assert torch.equal(found[:real], expected[:real])
    assert not found[real:].any()


@pytest.mark.parametrize("rows", [2, GROUPS])
def test_without_far_bays_an_expert_may_be_absent_too(full, rows):
    """As where the experts of a layer are divided over several devices."""
    made = full()
    x, ids, weights = step(made, rows)
    spread_out = spread(made, [1, 3, 4], absent=[0, 2, 5])
    layer = replace(spread_out, far=None)
    without = torch.where(torch.isin(ids, torch.tensor([0, 2, 5])), 0.0, weights)
    assert torch.equal(run(layer, (x, ids, weights)), run(made, (x, ids, without)))


@pytest.mark.parametrize(("rows", "real"), [(1, 0), (1, 1), (3, 1)])
def test_the_shared_expert_is_near_and_padding_rows_have_it_alone(full, random_planes, rows, real):
    made = full()
    gate, up, down = (random_planes("Q8_0", 64, 64, seed) for seed in (4, 5, 6))
    shared = SharedExpert(gate, up, down, torch.ones(64) / 64)
    x, ids, weights = step(made, rows)
    made = replace(made, shared=shared)
    padded = weights.clone()
    padded[real:] = 0.0
    expected = run(made, (x, ids, padded))
    layer = replace(spread(made, [3]), rows=torch.tensor([real], dtype=torch.int32))
    assert torch.equal(run(layer, (x, ids, weights)), expected)


@pytest.mark.parametrize("rows", [1, GROUPS])
def test_gate_and_up_may_be_halves_of_one_plane(full, random_planes, rows):
    made = full()
    both = random_planes("Q4_0", EXPERTS * 128, 64, 8).stacked(EXPERTS)
    made = replace(made, gate=both.part(0, 64), up=both.part(64, 128))
    operands = step(made, rows)
    layout = RecordLayout.of((both, made.down))
    arenas = layout.arena(2), layout.arena(EXPERTS)
    (near, near_down), (far, far_down) = (layout.stacks(arena) for arena in arenas)
    far.q[:], far.supers[:] = (part[made.bay_of_expert] for part in (both.q, both.supers))
    far_down.q[:] = made.down.q[made.bay_of_expert]
    far_down.supers[:] = made.down.supers[made.bay_of_expert]
    owners = torch.tensor([5, 2])
    arenas[0].copy_(arenas[1][owners])
    bays = 2 + torch.arange(EXPERTS)
    bays[owners] = torch.arange(2)
    layer = replace(
        made,
        gate=near.part(0, 64),
        up=near.part(64, 128),
        down=near_down,
        far=FarExperts(far.part(0, 64), far.part(64, 128), far_down),
        bay_of_expert=bays,
    )
    assert torch.equal(run(layer, operands), run(made, operands))


def beside(far):
    """Gate and up in an arena whose address is no multiple of 16 bytes behind the other's."""
    size = far.down.q.untyped_storage().nbytes() // 4
    arena = torch.zeros(size + 1, dtype=torch.int32)

    def moved(plane):
        return arena.as_strided(plane.shape, plane.stride(), plane.storage_offset() + 1)

    return {
        name: replace(stack, q=moved(stack.q), supers=moved(stack.supers))
        for name, stack in (("gate", far.gate), ("up", far.up))
    }


def test_it_says_which_far_experts_it_cannot_read(full):
    made = full()
    layer = spread(made, [1, 2])

    def reason(**changes):
        return kernels.supports(replace(layer, far=layer.far, **changes)).reason

    def far_reason(**changes):
        return kernels.supports(replace(layer, far=replace(layer.far, **changes))).reason

    assert reason() == ""
    assert "neither in planes nor plain numbers" in far_reason(up=object())
    assert "stored differently in near and in far" in far_reason(down=made.gate)
    assert "3 far bays of gate for 6 experts, of which 2 have near ones" in far_reason(
        gate=layer.far.gate.select(torch.arange(3))
    )
    apart = made.gate.select(made.bay_of_expert)
    assert "bytes apart, not one record" in far_reason(gate=apart)
    assert "different places in near and in far records" in far_reason(
        gate=layer.far.up, up=layer.far.gate
    )
    assert "no multiple of 16 bytes apart" in far_reason(**beside(layer.far))
    assert "number of real rows is torch.int64" in reason(rows=torch.tensor([1]))


def test_a_device_does_not_read_pageable_memory():
    memory = torch.zeros(16, dtype=torch.uint8)
    gpu = torch.device("cuda", 0)
    assert unreadable(memory, torch.device("cpu")) == ""
    assert "not page-locked" in unreadable(memory, gpu)
    assert "meta that cuda:0 cannot read" in unreadable(memory.to("meta"), gpu)

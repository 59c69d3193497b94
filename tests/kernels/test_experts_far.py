"""Experts in far bays, absent ones, and padding rows: the reference and the form for the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_records import landing, some, spread

from kinfolk_kernels.experts import op as reference
from kinfolk_kernels.experts import torch_backend as fast
from kinfolk_kernels.experts.op import ExpertsArguments, SharedExpert
from kinfolk_kernels.land.torch_backend import land

BACKENDS = pytest.mark.parametrize("backend", [reference, fast], ids=["ref", "torch"])
EXPERTS, WIDTH, CHANNELS, TOP_K = 10, 64, 64, 3


@pytest.fixture(scope="module", params=["plain", "Q8_0"])
def full(request, random_planes):
    """A layer where every expert is in a near bay."""
    generator = torch.Generator().manual_seed(4)

    def draw(seed, rows, columns):
        if request.param == "plain":
            return torch.randn(EXPERTS, rows, columns, generator=generator) / columns**0.5
        return random_planes(request.param, EXPERTS * rows, columns, seed).stacked(EXPERTS)

    bays = torch.randperm(EXPERTS, generator=generator)
    stacks = (draw(1, CHANNELS, WIDTH), draw(2, CHANNELS, WIDTH), draw(3, WIDTH, CHANNELS))
    return ExpertsArguments(*stacks, bays, "silu", TOP_K, torch.float32)


def step(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator)
    ids = torch.rand(rows, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].contiguous()
    return x, ids, torch.rand(rows, TOP_K, generator=generator)


@BACKENDS
@pytest.mark.parametrize("bays", [0, 1, TOP_K - 1, TOP_K, EXPERTS // 2, EXPERTS - 1, EXPERTS])
@pytest.mark.parametrize("rows", [1, 3, 7, 16])
def test_where_an_expert_lies_changes_no_bit(full, backend, bays, rows):
    operands = step(rows, seed=bays)
    expected = backend.experts(full, *operands)
    for empty in {0, min(1, bays)}:
        layer = spread(full, some(EXPERTS, bays, rows, empty))
        assert layer.near == bays
        assert torch.equal(backend.experts(layer, *operands), expected)


@pytest.mark.parametrize("rows", [64, 600])
def test_nor_for_many_rows(full, rows):
    operands = step(rows)
    layer = spread(full, some(EXPERTS, 4, rows, 1))
    assert torch.equal(fast.experts(layer, *operands), fast.experts(full, *operands))


@BACKENDS
@pytest.mark.parametrize("bays", [0, 1, EXPERTS // 2, EXPERTS - 1])
def test_nor_if_it_lands_before(full, backend, bays):
    layer, brings = landing(spread(full, some(EXPERTS, bays, 3, min(1, bays))))
    for seed in range(2):
        operands = step(7, seed)
        land(brings, operands[1])
        assert torch.equal(backend.experts(layer, *operands), backend.experts(full, *operands))


@BACKENDS
@pytest.mark.parametrize("rows", [1, 7, 20])
def test_an_absent_expert_adds_nothing(full, backend, rows):
    x, ids, weights = step(rows)
    absent = [2, 5, 6]
    layer = spread(full, some(EXPERTS, 3, 1), absent=absent)
    without = torch.where(torch.isin(ids, torch.tensor(absent)), 0.0, weights)
    found = backend.experts(layer, x, ids, weights)
    assert torch.equal(found, backend.experts(full, x, ids, without))


@BACKENDS
@pytest.mark.parametrize("real", [0, 1, 5, 7])
def test_for_padding_rows_no_expert_is_read(full, backend, real):
    x, ids, weights = step(7)
    expected = backend.experts(full, x, ids, weights)
    ids[real:], weights[real:], x[real:] = 10**6, torch.nan, torch.nan
    rows = torch.tensor([real], dtype=torch.int32)
    for layer in (full, spread(full, some(EXPERTS, 3, 2))):
        found = backend.experts(replace(layer, rows=rows), x, ids, weights)
        assert torch.equal(found[:real], expected[:real])
        assert not found[real:].any()


@BACKENDS
def test_padding_rows_have_the_shared_expert_only(full, backend):
    x, ids, weights = step(5)
    generator = torch.Generator().manual_seed(7)
    gate, up, down = torch.randn(3, WIDTH, WIDTH, generator=generator) / 8
    shared = SharedExpert(gate, up, down)
    layer = replace(full, shared=shared, rows=torch.tensor([2], dtype=torch.int32))
    found = backend.experts(layer, x, ids, weights)
    alone = backend.experts(replace(full, shared=shared), x, ids, torch.zeros_like(weights))
    assert torch.equal(found[2:], alone[2:])
    assert not torch.equal(found[:2], alone[:2])

"""Products of experts for prompts, in CUDA C++: compiled for sm_90, and run on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from copy_addresses import assert_addresses_of_one_register
from cuda_on_cpu import run_groups_on_cpu
from expert_layers import HALF, choice, numbers_of, rows_of
from expert_records import spread
from products_under_way import assert_products_run_beside_others

from kinfolk_kernels.aot import usage_of
from kinfolk_kernels.cuda_source import MAX_SHARED, CudaLaunch
from kinfolk_kernels.experts import triton_backend as kernels
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import Order, sort
from kinfolk_kernels.experts.mma_group_launches import (
    BLOCK_PAIRS,
    group_products,
    mma_group_launches,
)
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.linear.prepare import F16Rows, f16_rows
from kinfolk_kernels.linear.segments import counters
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import LAYOUTS

META, CPU = torch.device("meta"), torch.device("cpu")
ALL_REGISTERS = 65536

A_FEW = 64
"""Bytes of registers that are stored: a round of more than a thousand cycles reloads some."""


def run_all(launches):
    for launch in launches:
        if isinstance(launch, CudaLaunch):
            run_groups_on_cpu(launch)
            assert not counters(CPU, 1).any()
        else:
            launch.run()


def result(experts, x, chosen):
    y = torch.full((len(x), experts.width), torch.nan)
    run_all(mma_group_launches(x, chosen, experts, y))
    return y


def launch_of(name, experts, rows, columns, matrices):
    stack = empty(name, experts * rows, columns, META).stacked(experts)
    bays = torch.empty(experts, dtype=torch.int64, device=META)
    layer = ExpertsArguments(stack, stack, stack, bays, "silu", 8, torch.float16)
    pairs = 16384
    order = Order.make(pairs, experts, META)
    y = torch.empty(matrices, pairs, rows, dtype=torch.float16, device=META)
    names, top_k = (("gate", "up"), 8) if matrices == 2 else (("down",), 0)
    x = F16Rows.make(pairs, columns, META)
    return group_products(names, x, top_k, layer, order, y)


@pytest.mark.parametrize(
    ("name", "experts", "rows", "columns", "matrices"),
    [
        ("Q4_K", 256, 512, 2048, 2),
        ("Q6_K", 256, 2048, 512, 1),
        ("Q4_K", 128, 704, 2816, 2),
        ("Q5_0", 128, 2816, 704, 1),
        ("Q8_0", 128, 2816, 704, 1),
        ("IQ4_XS", 1024, 2048, 1024, 1),
    ],
)
def test_it_compiles_with_few_spills(name, experts, rows, columns, matrices):
    launch = launch_of(name, experts, rows, columns, matrices)
    code = launch.source.compiled()
    usage = usage_of(code, launch.shared)
    assert launch.shared <= MAX_SHARED
    assert usage.registers * launch.threads <= ALL_REGISTERS
    assert usage.spilled <= A_FEW
    assert_products_run_beside_others(code, 3)
    assert_addresses_of_one_register(code)


@pytest.mark.parametrize("experts", [8, 1024])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format_fits_in_shared_memory(name, experts):
    launch = launch_of(name, experts, 2048, 512, 1)
    assert launch.shared <= MAX_SHARED


def chosen_by(counts):
    """One expert a row, by as many rows as ``counts`` say, mixed."""
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    mixed = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
    return Choice(ids[mixed][:, None].contiguous(), torch.ones(len(ids), 1))


@pytest.mark.interpreter
@pytest.mark.parametrize("name", LAYOUTS)
def test_products_of_every_format_equal_float64(planes_stack, numbers, name):
    """Blocks of one pair, of all numbers of tiles, and several of an expert."""
    chosen = chosen_by([1, 0, 33, 70, 81, 0, 0])
    columns = 320 if LAYOUTS[name].block == 32 else 512
    stacks = [planes_stack(name, 7, 268, columns, seed) for seed in (1, 2)]
    bays = torch.tensor([3, 1, 0, 6, 5, 2, 4])
    layer = ExpertsArguments(*stacks, stacks[0], bays, "silu", 1, torch.float16)
    pairs = len(chosen.ids)
    x = numbers(pairs, columns).bfloat16()
    order = Order.make(pairs, 7, CPU)
    y = torch.full((2, pairs, 268), torch.nan, dtype=torch.float16)
    run_all(sort(chosen.ids, order, BLOCK_PAIRS))
    run_all([group_products(("gate", "up"), f16_rows(x), 1, layer, order, y)])
    places = order.order.long()
    for stack, found in zip(stacks, y, strict=True):
        matrices = numbers_of(stack)[bays][chosen.ids[places, 0]]
        expected = torch.einsum("pnk,pk->pn", matrices, x[places].double())
        error = (found - expected).norm(dim=1) / expected.norm(dim=1)
        assert float(error.max()) <= HALF[0]


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("upper", "lower", "activation", "width", "channels"),
    [("Q4_K", "Q6_K", "silu", 256, 256), ("Q8_0", "Q5_0", "gelu_tanh", 64, 192)],
)
def test_a_layer_equals_float64(
    layer, numbers, assert_near, upper, lower, activation, width, channels
):
    made = layer(upper, lower, 9, width, channels, activation)
    x, chosen = rows_of(numbers, 90, made).bfloat16(), choice(90, 2, 9)
    assert_near(result(made.experts, x, chosen), made.exact(x, chosen.ids, chosen.weights), HALF)


@pytest.mark.interpreter
def test_the_result_of_a_row_has_the_same_bits_in_any_company(layer, numbers):
    made = layer("Q4_K", "Q5_0", 5, 256, 64)
    x, chosen = rows_of(numbers, 120, made).half(), choice(120, 2, 5)
    y = result(made.experts, x, chosen)
    for rows in (9, 119):
        part = Choice(chosen.ids[:rows], chosen.weights[:rows])
        assert torch.equal(result(made.experts, x[:rows], part), y[:rows])


@pytest.mark.interpreter
def test_experts_far_away_and_absent_and_rows_of_padding(layer, numbers):
    made = layer("Q4_0", "Q8_0", 8, 64, 64)
    x, chosen = rows_of(numbers, 90, made).half(), choice(90, 3, 8)
    near = result(made.experts, x, chosen)
    for bays in ([0, 4, 7], []):
        assert torch.equal(result(spread(made.experts, bays), x, chosen), near)

    without = Choice(chosen.ids, chosen.weights * ((chosen.ids != 2) & (chosen.ids != 5)))
    found = result(spread(made.experts, [0, 4, 7], absent=[2, 5]), x, chosen)
    expected = made.exact(x, without.ids, without.weights)
    assert float((found - expected).norm() / expected.norm()) <= HALF[0]

    for rows in (0, 1, 60):
        padded = replace(made.experts, rows=torch.tensor([rows], dtype=torch.int32))
        found = result(padded, x, chosen)
        assert torch.equal(found[:rows], near[:rows])
        assert not found[rows:].any()


@pytest.mark.interpreter
def test_prompts_take_them_where_they_can_and_shorter_ones_never(layer, numbers, monkeypatch):
    taken = []
    for name in ("mma_group_launches", "group_launches"):
        monkeypatch.setattr(
            kernels, name, lambda *arguments, name=name, **options: taken.append(name) or []
        )
    monkeypatch.setattr(kernels, "unavailable", lambda device: "")
    monkeypatch.setattr(kernels, "INT8_GROUPED_ROWS", 40)
    made = layer("Q4_0", "Q8_0")
    plain = replace(made.experts, down=numbers_of(made.experts.down).half())
    halves = {
        name: replace(getattr(made.experts, name), activations="f16")
        for name in ("gate", "up", "down")
    }
    for rows, arguments in (
        (41, made.experts),
        (41, plain),
        (41, replace(made.experts, **halves)),
        (40, replace(made.experts, **halves)),
    ):
        x, chosen = rows_of(numbers, rows, made), choice(rows, 2, 5)
        kernels.experts(arguments, x, chosen.ids, chosen.weights)
    by_mma, by_triton = "mma_group_launches", "group_launches"
    assert taken == [by_mma, by_triton, by_mma, by_triton]

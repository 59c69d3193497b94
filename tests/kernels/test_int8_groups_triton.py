"""The experts' kernel for a few rows an expert, against float64 over the same quantised numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_layers import EXACT, FLIPS, INT8, as_int8, choice, placed, rows_of

from kinfolk_kernels.experts import int8_group_launches as groups
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import Order, sort
from kinfolk_kernels.int8_rows import Int8Rows, dequantize, quantize
from kinfolk_kernels.planes import LAYOUTS

pytestmark = pytest.mark.interpreter


def run(layer, x, chosen, **options):
    y = torch.full((x.shape[0], layer.experts.width), torch.nan)
    for launch in groups.int8_group_launches(x, chosen, layer.experts, y, asm=False, **options):
        launch.run()
    return y


def assert_right(made, x, chosen, assert_near, **options):
    y = run(made, x, chosen, **options)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights, as_int8, as_int8), FLIPS)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights), INT8)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format(planes_stack, numbers, assert_near, name):
    """Columns that are no multiple of 128, and more rows of a matrix than a tile has."""
    columns = 192 if LAYOUTS[name].block == 32 else 256
    made = placed(*(planes_stack(name, 2, 36, columns, seed) for seed in (1, 2, 3)))
    x, chosen = numbers(6, columns).clamp(-4, 4), choice(6, 1, 2)
    rows, order = quantize(x), Order.make(6, 2, x.device)
    for launch in sort(chosen.ids, order, 8):
        launch.run()
    y = torch.full((2, 6, 36), torch.nan)
    groups.group_products("gate", "up", rows, 1, made.experts, order, y, 1, asm=False).run()
    pairs = order.order.long()
    wide, expert = dequantize(rows).double()[pairs], chosen.ids[pairs, 0]
    for found, matrices in zip(y, (made.gate, made.up), strict=True):
        assert_near(found, torch.einsum("pnk,pk->pn", matrices[expert], wide), EXACT)


def test_results_in_float16_end_at_its_largest_number(planes_stack, numbers):
    made = placed(*(planes_stack("Q8_0", 1, 36, 64, seed) for seed in (1, 2, 3)))
    x, chosen = numbers(3, 64), choice(3, 1, 1)
    x[1] *= 1e7
    rows, order = quantize(x), Order.make(3, 1, x.device)
    for launch in sort(chosen.ids, order, 8):
        launch.run()
    y = torch.full((1, 3, 36), torch.nan)
    for results in (y, half := y.half()):
        groups.group_products(
            "gate", "gate", rows, 1, made.experts, order, results, 1, asm=False
        ).run()
    assert float(y[0, 1].abs().max()) > 65504
    assert torch.equal(half, y.clamp(-65504, 65504).half())


@pytest.mark.parametrize(
    ("rows", "top_k", "experts", "eights", "activation"),
    [(1, 1, 1, 1, "silu"), (4, 2, 6, 1, "gelu_tanh"), (9, 1, 1, 2, "silu")],
)
def test_any_numbers_of_rows_and_experts(
    layer, numbers, assert_near, rows, top_k, experts, eights, activation
):
    """Some experts get no row, some more than a block."""
    made = layer("Q8_0", "Q4_0", experts=experts, activation=activation)
    chosen = choice(rows, top_k, experts)
    assert_right(made, rows_of(numbers, rows, made), chosen, assert_near, eights=eights)


def test_neighbours_blocks_and_tiles_change_no_bit(layer, numbers, monkeypatch):
    made = layer("Q4_0", "Q8_0", experts=1)
    x, chosen = rows_of(numbers, 11, made), choice(11, 1, 1)
    one = run(made, x, chosen, eights=1)
    monkeypatch.setattr(groups, "PROGRAM_PAIRS", 1)
    assert torch.equal(run(made, x, chosen, eights=2), one)
    some = slice(3, 7)
    part = run(made, x[some], Choice(chosen.ids[some], chosen.weights[some]), eights=1)
    assert torch.equal(part, one[some])


def test_rows_that_are_int8_already_are_not_rounded_again(layer, numbers):
    """Their scales may lie any distance apart, as in the rows of a larger step."""
    made = layer("Q4_0", "Q8_0", experts=1)
    x, chosen = rows_of(numbers, 5, made), choice(5, 1, 1)
    expected, rows = run(made, x, chosen), quantize(x)
    wide = torch.full((rows.scale.shape[0], 24), torch.nan)
    wide[:, : rows.scale.shape[1]] = rows.scale
    x.zero_()
    x.int8_rows = Int8Rows(rows.words, wide)
    assert torch.equal(run(made, x, chosen), expected)


def test_padding_rows_and_absent_experts_are_not_read(layer, numbers, assert_near):
    made = layer("Q4_0", "Q8_0", experts=3)
    x, chosen = rows_of(numbers, 10, made), choice(10, 1, 3)
    x[7:] = torch.nan
    chosen.ids[7:] = 99  # no such expert
    bays = made.experts.bay_of_expert.clone()
    absent = chosen.ids[0, 0]
    bays[absent] = -1
    rows = torch.tensor([7], dtype=torch.int32)
    experts = replace(made.experts, bay_of_expert=bays, rows=rows)
    y = torch.full((10, experts.width), torch.nan)
    for launch in groups.int8_group_launches(x, chosen, experts, y, asm=False):
        launch.run()
    weights = torch.where(chosen.ids == absent, 0, chosen.weights)
    expected = made.exact(x[:7], chosen.ids[:7], weights[:7], as_int8, as_int8)
    assert_near(y[:7], expected, FLIPS)
    assert torch.equal(y[7:], torch.zeros(3, experts.width))


@pytest.mark.parametrize(
    ("pairs", "experts", "eights"),
    [(1, 256, 1), (512, 256, 1), (1024, 256, 1), (2048, 256, 2), (4096, 256, 2), (9999, 8, 2)],
)
def test_most_experts_have_one_block_of_at_most_16_pairs_if_choices_are_even(
    pairs, experts, eights
):
    assert groups.eights_for(pairs, experts) == eights

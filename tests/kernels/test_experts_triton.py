"""The experts' kernels, against float64 over the same quantised numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_layers import (
    EXACT,
    FLIPS,
    HALF,
    INT8,
    as_int8,
    choice,
    placed,
    rows_of,
)

from kinfolk.ops.binding import Ops
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk_kernels.act_and_mul.triton_backend import CODES
from kinfolk_kernels.experts import group_launches as group
from kinfolk_kernels.experts import pair_launches as pair
from kinfolk_kernels.experts import triton_backend as kernels
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.op import EXPERTS, SharedExpert
from kinfolk_kernels.int8_rows import dequantize, quantize
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

ACTIVATIONS = pytest.mark.parametrize("activation", CODES)


@pytest.fixture(autouse=True)
def _large_programs(monkeypatch):
    """The interpreter's time for a program hardly depends on the work in that program."""
    monkeypatch.setattr(pair, "QUADS", 16)


def poisoned_inner(chosen, experts):
    inner = pair.Inner.make(chosen, experts)
    for part in (inner.pairs, inner.shared, inner.open, inner.scale):
        if part is not None:
            part.fill_(torch.nan)
    return inner


def as_lanes(name):
    """Rounds rows to int8 with a scale for what a lane holds of 16 words: every second, in formats
    of eight bits every fourth."""
    step = 4 if name == "Q8_0" else 2

    def rounded(numbers):
        words = numbers.float().reshape(-1, numbers.shape[-1] // 64, 16 // step, step, 4)
        scale = words.abs().amax((2, 4), keepdim=True) / 127
        inverse = torch.where(scale > 0, 1 / scale, 0)
        return ((words * inverse).round() * scale).double().view_as(numbers)

    return rounded


def as_stored(numbers):
    """Rows between the products: first words 0 and 1 of every group, then 2 and 3, and so on."""
    words = numbers.unflatten(1, (-1, 8, 2, 4))
    return words.transpose(1, 2).flatten(1)


# -- each pair for itself -------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_gate_and_up_of_a_pair(layer, numbers, assert_near, name, rows):
    """One row is taken by more lanes than three."""
    activation = "silu" if rows == 1 else "gelu_tanh"
    width = 704 if LAYOUTS[name].block == 32 else 512
    made = layer(name, "Q8_0", width=width, channels=128, activation=activation)
    x, chosen = rows_of(numbers, rows, made), choice(rows, 2 if rows == 1 else 1, 5)
    rows, inner = quantize(x), poisoned_inner(chosen, made.experts)
    pair.gate_up_pairs(x, rows, chosen, made.experts, inner, asm=False).run()
    wide = dequantize(rows).double()
    expected = torch.stack(
        [made.inner(wide[row], e) for row, ids in enumerate(chosen.ids.tolist()) for e in ids]
    )
    assert_near(inner.pairs, as_stored(expected), EXACT)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("rows", "channels", "top_k"), [(1, 64, 8), (3, 320, 7)])
def test_down_of_a_row_s_experts(layer, numbers, assert_near, name, rows, channels, top_k):
    """One row is taken by as many lanes as its experts have words, three by fewer."""
    made = layer("Q8_0", name, experts=9, channels=channels, outputs=8)
    channels = made.experts.channels
    chosen = choice(rows, top_k, 9)
    inner = poisoned_inner(chosen, made.experts)
    between = numbers(rows * top_k, channels)
    inner.pairs.copy_(as_stored(between))
    y = torch.full((rows, 8), torch.nan)
    if inner.words is not None:
        pair.round_pairs(inner, made.experts, asm=False).run()
    pair.down_pairs(inner, chosen, made.experts, y, asm=False).run()
    wide = as_lanes(name)(between).unflatten(0, (rows, top_k))
    expected = torch.einsum("rk,rknf,rkf->rn", chosen.weights.double(), made.down[chosen.ids], wide)
    assert_near(y, expected, EXACT)


@pytest.mark.parametrize(
    ("rows", "upper", "lower", "activation"),
    [(1, "Q4_0", "Q5_0", "silu"), (3, "Q8_0", "Q8_0", "gelu_tanh")],
)
def test_few_rows(layer, numbers, assert_near, rows, upper, lower, activation):
    made = layer(upper, lower, activation=activation)
    x, chosen = rows_of(numbers, rows, made), choice(rows, 2, 5)
    y = torch.full((rows, made.experts.width), torch.nan)
    for launch in pair.pair_launches(x, chosen, made.experts, y, asm=False):
        launch.run()
    assert_near(y, made.exact(x, chosen.ids, chosen.weights, as_int8, as_lanes(lower)), FLIPS)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights), INT8)


@pytest.mark.parametrize(
    ("upper", "lower", "channels", "gated"),
    [("Q8_0", "Q8_0", 64, True), ("Q5_0", "Q4_0", 128, False)],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_shared_expert_is_one_more_pair(
    layer, random_planes, numbers, assert_near, upper, lower, channels, gated, rows
):
    """In formats and a size of its own."""
    made = layer("Q4_0", "Q5_0", channels=128)
    x, chosen = rows_of(numbers, rows, made), choice(rows, 2, 5)
    gate, up = (random_planes(upper, channels, 64, seed) for seed in (4, 5))
    shared_gate = numbers(64) / 64 if gated else None
    shared = SharedExpert(gate, up, random_planes(lower, 64, channels, 6), shared_gate)
    assert pair.joins(replace(made.experts, shared=shared), chosen)
    y = torch.full((rows, 64), torch.nan)
    for launch in pair.pair_launches(x, chosen, replace(made.experts, shared=shared), y, asm=False):
        launch.run()
    wide = dequantize(quantize(x)).double()
    inner = wide @ unpack(gate).double().T
    inner = inner * inner.sigmoid() * (wide @ unpack(up).double().T)
    added = as_lanes(lower)(inner) @ unpack(shared.down).double().T
    if gated:
        added = added * (x.double() @ shared_gate.double()).sigmoid()[:, None]
    routed = made.exact(x, chosen.ids, chosen.weights, as_int8, as_lanes("Q5_0"))
    assert_near(y, routed + added, FLIPS)


def test_a_shared_expert_that_is_not_in_planes_or_too_long_stays_alone(layer, random_planes):
    made, chosen = layer("Q8_0", "Q8_0"), choice(2, 2, 5)

    def fits(channels, **changes):
        gate = random_planes("Q8_0", channels, 128)
        shared = SharedExpert(gate, gate, random_planes("Q8_0", 128, channels))
        return pair.joins(replace(made.experts, shared=shared._replace(**changes)), chosen)

    assert fits(64)
    assert not fits(192)
    assert not fits(64, gate=torch.zeros(64, 128))
    assert not fits(64, gate=random_planes("Q4_0", 64, 128))
    assert not fits(64, down=random_planes("Q8_0", 128, 64, activations="f16"))
    assert not pair.joins(made.experts, chosen)


# -- pairs of an expert together ------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format_as_numbers_for_the_matrix_unit(layer, numbers, assert_near, name):
    small = LAYOUTS[name].block == 32
    made = layer(name, name, width=192 if small else 256, channels=64 if small else 256)
    assert_groups(made, rows_of(numbers, 6, made).half(), choice(6, 2, 5), HALF, assert_near)


@ACTIVATIONS
@pytest.mark.parametrize(
    ("rows", "top_k", "experts"), [(1, 1, 1), (5, 4, 12), (20, 3, 4), (67, 2, 3)]
)
def test_plain_numbers(numbers, assert_near, rows, top_k, experts, activation):
    """Odd shapes; some experts get no row, some more than a block."""
    gate, up = (numbers(experts, 40, 72).clamp(-4, 4) / 8 for _ in range(2))
    made = placed(gate, up, numbers(experts, 72, 40) / 6, activation)
    assert_groups(
        made, rows_of(numbers, rows, made), choice(rows, top_k, experts), EXACT, assert_near
    )


@pytest.mark.parametrize("rows", [3, 70])
def test_plain_float16(numbers, assert_near, rows):
    gate, up = ((numbers(4, 64, 128).clamp(-4, 4) / 10).half() for _ in range(2))
    made = placed(gate, up, (numbers(4, 128, 64).clamp(-4, 4) / 8).half())
    assert_groups(made, rows_of(numbers, rows, made).half(), choice(rows, 2, 4), HALF, assert_near)


@pytest.mark.parametrize("rows", [2, 66])
def test_down_may_be_plain_where_the_others_are_in_planes(planes_stack, numbers, assert_near, rows):
    """Channels that are no multiple of 64 have no planes where they are columns."""
    gate, up = (planes_stack("Q8_0", 4, 40, 64, seed) for seed in (1, 2))
    made = placed(gate, up, numbers(4, 64, 40).clamp(-4, 4) / 6)
    x, chosen = rows_of(numbers, rows, made).half(), choice(rows, 2, 4)
    assert kernels.supports(made.experts)
    y = made.run(x, chosen)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights), HALF)


def assert_groups(made, x, chosen, bound, assert_near):
    y = torch.full((x.shape[0], made.experts.width), torch.nan)
    for launch in group.group_launches(x, chosen, made.experts, y):
        launch.run()
    assert_near(y, made.exact(x, chosen.ids, chosen.weights), bound)


@pytest.mark.parametrize(
    ("rows", "int8_rows", "rounding", "bound"),
    [
        (1, 512, {"round": as_int8, "between": as_lanes("Q8_0")}, FLIPS),
        (34, 512, {"round": as_int8, "between": as_int8}, FLIPS),
        (34, 0, {}, HALF),
    ],
    ids=["pairs", "groups in int8", "groups"],
)
def test_halves_of_a_fused_stack_are_read_in_place(
    planes_stack, numbers, assert_near, monkeypatch, rows, int8_rows, rounding, bound
):
    """Gate and up as views of one stack, as some files hold them."""
    monkeypatch.setattr(kernels, "INT8_GROUPED_ROWS", int8_rows)
    both, down = planes_stack("Q4_0", 4, 128, 64, 5), planes_stack("Q8_0", 4, 64, 64, 6)
    made = placed(both.part(0, 64), both.part(64, 128), down)
    assert made.experts.up.q.storage_offset() > 0
    x, chosen = rows_of(numbers, rows, made).half(), choice(rows, 2, 4)
    assert kernels.supports(made.experts)
    y = made.run(x, chosen)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights, **rounding), bound)


def test_what_is_between_the_products_ends_at_the_largest_float16(numbers):
    gate, up = torch.full((1, 64, 64), 10.0).half(), torch.full((1, 64, 64), 10.0).half()
    made = placed(gate, up, torch.full((1, 64, 64), 1e-3).half())
    x, chosen = torch.full((2, 64), 5.0), choice(2, 1, 1)
    assert made.run(x, chosen).isfinite().all()


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_how_much_a_program_makes_changes_no_number(layer, numbers, monkeypatch, name):
    made = layer(name, "Q8_0", width=192)
    x, chosen = rows_of(numbers, 1, made), choice(1, 2, 5)
    found = []
    for quads in (1, 4):
        monkeypatch.setattr(pair, "QUADS", quads)
        inner = poisoned_inner(chosen, made.experts)
        launch = pair.gate_up_pairs(x, quantize(x), chosen, made.experts, inner, asm=False)
        assert launch.grid == (2, 16 // quads)
        launch.run()
        found.append(inner.pairs)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


# -- bitwise equality -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 34])
def test_at_equal_row_count_neighbours_and_bays_change_no_bit(layer, numbers, rows):
    made = layer("Q8_0", "Q5_0", experts=6, width=64)
    mine = rows_of(numbers, 1, made)[0]
    own, shares = torch.tensor([4, 0, 2]), torch.tensor([0.5, 0.3, 0.2])
    found = []
    for seed, crowd in enumerate([[4, 0, 2], None]):
        place = seed * 5 % rows
        chosen = choice(rows, 3, 6, seed)
        if crowd is not None:
            chosen.ids[:] = torch.tensor(crowd)
        x = rows_of(numbers, rows, made)
        x[place], chosen.ids[place], chosen.weights[place] = mine, own, shares
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        old = made.experts
        place_of = old.bay_of_expert[order]
        gate, up, down = (stack.select(place_of) for stack in (old.gate, old.up, old.down))
        bays = order.argsort()
        y = made.run(x, chosen, gate=gate, up=up, down=down, bay_of_expert=bays)
        found.append(y[place])
    assert all(torch.equal(one, found[0]) for one in found)


@pytest.mark.parametrize(("rows", "top_k"), [(5, 2), (17, 1)])
def test_few_rows_give_the_bits_of_one_row_in_another_company(layer, numbers, rows, top_k):
    """From 3 to 32 rows, int8 products do not depend on the number of rows."""
    made = layer("Q8_0", "Q4_0")
    x, chosen = rows_of(numbers, rows, made), choice(rows, top_k, 5)
    y = made.run(x, chosen)
    part = made.run(x[1:4], Choice(chosen.ids[1:4], chosen.weights[1:4]))
    assert torch.equal(part, y[1:4])


# -- the op ---------------------------------------------------------------------------------------


def test_the_number_of_rows_decides_between_pairs_and_groups(layer, numbers, monkeypatch):
    made, taken = layer("Q4_0", "Q8_0"), []

    def noting(name):
        return lambda *arguments, **options: taken.append(name) or []

    for name in ("pair_launches", "int8_group_launches", "group_launches"):
        monkeypatch.setattr(kernels, name, noting(name))
    monkeypatch.setattr(kernels, "INT8_GROUPED_ROWS", 48)
    for rows in (1, 16, 17, 32, 33, 48, 49, 64):
        made.run(rows_of(numbers, rows, made), choice(rows, 2, 5))
    few, some, many = "pair_launches", "int8_group_launches", "group_launches"
    assert taken == [few] * 4 + [some] * 2 + [many] * 2


def test_activations_of_the_matrices_decide_between_int8_and_float16(layer, numbers, assert_near):
    made = layer("Q4_0", "Q8_0")
    x, chosen = rows_of(numbers, 2, made), choice(2, 2, 5)
    expected = made.exact(x, chosen.ids, chosen.weights)
    old = made.experts
    stacks = {"gate": old.gate, "up": old.up, "down": old.down}
    exact = {name: replace(stack, activations="f16") for name, stack in stacks.items()}
    found = made.run(x, chosen, **exact)
    assert_near(found, expected, HALF)
    rounded = made.run(x, chosen)
    assert float((rounded - expected).norm() / expected.norm()) > HALF[0]


def test_it_says_what_it_cannot(layer):
    made = layer("Q4_K", "Q8_0").experts

    def reason(**changes):
        return kernels.supports(replace(made, **changes)).reason

    assert reason() == ""
    assert "differently" in reason(up=layer("Q5_K", "Q8_0").experts.up)
    assert "neither" in reason(down=object())
    assert "multiple of 64" in reason(down=replace(made.down, columns=96))
    assert "differently" in reason(gate=torch.zeros(5, 64, 256), up=torch.zeros(5, 64, 256).half())
    assert "not contiguous" in reason(bay_of_expert=made.bay_of_expert.repeat_interleave(2)[::2])
    assert "int64" in reason(down=torch.zeros(5, 256, 64, dtype=torch.int64))
    assert "33 of 5 experts" in reason(top_k=33)
    assert "bfloat16" in reason(dtype=torch.bfloat16)
    assert "bfloat16" in reason(down=torch.zeros(5, 256, 64, dtype=torch.bfloat16))
    matrix = torch.zeros(64, 256)
    assert reason(shared=SharedExpert(matrix, matrix, matrix.T)) == ""
    assert "neither" in reason(shared=SharedExpert(matrix, object(), matrix.T))


@pytest.mark.parametrize("rows", [3, 34])
def test_strided_operands_are_read_like_contiguous_ones(layer, numbers, rows):
    made = layer("Q8_0", "Q5_0")
    wide, chosen = numbers(rows, 128).clamp(-4, 4).half(), choice(rows, 4, 5)
    strided = Choice(chosen.ids[:, ::2], chosen.weights[:, ::2])
    plain = Choice(strided.ids.contiguous(), strided.weights.contiguous())
    assert torch.equal(made.run(wide[:, ::2], strided), made.run(wide[:, ::2].contiguous(), plain))


def test_rows_of_float32_are_not_rounded(layer):
    """Rows of float32 ask for its precision; plain float32 matrices give it."""
    made = replace(layer("Q4_K", "Q8_0").experts, dtype=torch.float32)
    assert "float32 are not rounded" in kernels.supports(made).reason
    assert kernels.supports(replace(made, dtype=torch.float16))
    upper, lower = torch.zeros(5, 64, 256), torch.zeros(5, 256, 64)
    plain = replace(made, gate=upper, up=upper, down=lower)
    assert kernels.supports(plain)
    half = upper.half()
    assert not kernels.supports(replace(plain, gate=half, up=half, down=lower.half()))


def test_the_next_back_end_takes_rows_of_float32_and_says_why(layer, numbers, assert_near):
    made = layer("Q4_0", "Q8_0")
    x, chosen = rows_of(numbers, 2, made), choice(2, 2, 5)
    ops = Ops(OP_BACKENDS, device="cuda")
    experts = ops.bind(EXPERTS, replace(made.experts, dtype=torch.float32))
    found = experts(x, chosen.ids, chosen.weights)
    assert_near(found, made.exact(x, chosen.ids, chosen.weights), EXACT)
    (decision,) = ops.decisions.values()
    assert decision.backend == "torch"
    ((name, reason),) = decision.refused
    assert name == "triton"
    assert "rows of float32 are not rounded" in reason


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", [1, 34])
def test_the_shared_expert_may_be_beside_the_others_or_apart(
    layer, planes_stack, numbers, assert_near, rows, packed
):
    made = layer("Q4_0", "Q5_0", channels=128)
    x, chosen = rows_of(numbers, rows, made).half(), choice(rows, 2, 5)
    matrices = [planes_stack("Q8_0", 1, 64, 64, seed)[0] for seed in range(3)]
    if not packed:
        matrices = [unpack(matrix) for matrix in matrices]
    shared = SharedExpert(*matrices, numbers(64) / 64)
    y = made.run(x, chosen, shared=shared)
    alone = made.run(x, chosen)
    gate, up, down = (m.double() if not packed else unpack(m).double() for m in matrices)
    wide = x.double()
    inner = wide @ gate.T
    inner = inner * inner.sigmoid() * (wide @ up.T)
    added = (inner @ down.T) * (wide @ shared.shared_gate.double()).sigmoid()[:, None]
    assert_near(y, alone.double() + added, INT8)

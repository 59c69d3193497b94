"""The experts' kernels, against float64 over the same quantised numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from kinfolk_kernels.experts import group_launches as group
from kinfolk_kernels.experts import pair_launches as pair
from kinfolk_kernels.experts import triton as kernels
from kinfolk_kernels.experts.layer import CURVES, Choice, Experts
from kinfolk_kernels.int8_rows import Int8Rows, dequantize, quantize
from kinfolk_kernels.planes import LAYOUTS, PlanesStack, unpack

pytestmark = pytest.mark.interpreter

EXACT = (3e-6, 2e-5)
"""Exact integer products or products of float32, summed in float32."""

HALF = (4e-3, 3e-2)
"""Weights, rows and what is between the products as float16; of random scales and minima, many a
weight is a small difference of large numbers."""

FLIPS = (6e-3, 5e-2)
"""Rows in int8: what is between the products may round to the next of 255 steps."""

INT8 = (5e-2, 0.3)
"""Rows of 64 numbers in int8, between them one that is four times as large as usual."""

ACTIVATIONS = pytest.mark.parametrize("activation", CURVES)


@dataclass
class Layer:
    """Experts in bays, and the matrices of each expert as float64."""

    experts: Experts
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    @property
    def stacks(self):
        e = self.experts
        return e.gate, e.up, e.down, e.bays, e.activation

    def inner(self, x, expert):
        gate, up = self.gate[expert] @ x, self.up[expert] @ x
        if self.experts.activation == "silu":
            return gate * gate.sigmoid() * up
        return torch.nn.functional.gelu(gate, approximate="tanh") * up

    def exact(self, x, ids, weights, round=lambda numbers: numbers):
        """In float64; ``round`` takes what meets a matrix."""
        x = round(x.double())
        out = torch.zeros(len(ids), self.down.shape[1], dtype=torch.float64)
        for row, (chosen, shares) in enumerate(zip(ids.tolist(), weights.double(), strict=True)):
            for expert, share in zip(chosen, shares, strict=True):
                out[row] += share * (self.down[expert] @ round(self.inner(x[row], expert)))
        return out


@pytest.fixture
def planes_stack(random_planes):
    """``planes_stack(format, experts, rows, columns, seed=)``: numbers of a normal size."""

    def make(name, experts, rows, columns, seed=0):
        planes = random_planes(name, experts * rows, columns, seed)
        size = float(unpack(planes).std()) * columns**0.5
        supers = (planes.supers.view(torch.float16) / size).view(torch.int32)
        return replace(planes, supers=supers).stacked(experts)

    return make


def numbers_of(stack):
    if isinstance(stack, PlanesStack):
        return torch.stack([unpack(stack[i]) for i in range(len(stack))]).double()
    return stack.double()


def placed(gate, up, down, activation="silu", seed=0):
    """The stacks as the bays hold them; expert e lies in a bay of its own."""
    bays = torch.randperm(gate.shape[0], generator=torch.Generator().manual_seed(seed))
    dense = (numbers_of(stack)[bays] for stack in (gate, up, down))
    return Layer(Experts(gate, up, down, bays, activation), *dense)


@pytest.fixture
def layer(planes_stack):
    """``layer(gate and up's format, down's, experts=, width=, channels=)``."""

    def make(upper, lower, experts=5, width=128, channels=64, activation="silu"):
        if LAYOUTS[upper].block == 256:
            width = -(-width // 256) * 256
        if LAYOUTS[lower].block == 256:
            channels = -(-channels // 256) * 256
        gate, up = (planes_stack(upper, experts, channels, width, seed) for seed in (1, 2))
        return placed(gate, up, planes_stack(lower, experts, width, channels, 3), activation)

    return make


def choice(rows, top_k, experts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(rows, experts, generator=generator).argsort(1)[:, :top_k].contiguous()
    return Choice(ids, torch.rand(rows, top_k, generator=generator))


def poisoned_rows(rows, width):
    words = torch.full((rows, width // 4), 0x7F7F7F7F, dtype=torch.int32)
    return Int8Rows(words, torch.full((rows, width // 64), torch.nan), words.clone())


def as_int8(numbers):
    return (
        dequantize(quantize(numbers.float().view(-1, numbers.shape[-1]))).double().view_as(numbers)
    )


def rows_of(numbers, rows, layer):
    """Rows without outliers, whose products are of a normal size."""
    return numbers(rows, layer.experts.width).clamp(-4, 4)


# -- each pair for itself -------------------------------------------------------------------------


@ACTIVATIONS
@pytest.mark.parametrize("name", LAYOUTS)
def test_gate_and_up_of_a_pair_as_int8(layer, numbers, name, activation):
    made = layer(name, "Q8_0", width=704 if LAYOUTS[name].block == 32 else 512, channels=128,
                 activation=activation)  # fmt: skip
    x, chosen = rows_of(numbers, 3, made), choice(3, 2, 5)
    rows, inner = quantize(x), poisoned_rows(6, 128)
    pair.gate_up_pairs(rows, chosen, made.experts, inner, asm=False).run()
    wide = dequantize(rows).double()
    expected = torch.stack(
        [made.inner(wide[i // 2], e) for i, e in enumerate(chosen.ids.flatten().tolist())]
    )
    wanted = quantize(expected.float())
    torch.testing.assert_close(inner.scale, wanted.scale, rtol=1e-5, atol=0)
    difference = inner.words.view(torch.int8).int() - wanted.words.view(torch.int8).int()
    assert int(difference.abs().max()) <= 1
    assert float((difference != 0).float().mean()) < 0.01


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("channels", "top_k"), [(320, 3), (64, 8)])
def test_down_of_a_row_s_experts(layer, numbers, assert_near, name, channels, top_k):
    made = layer("Q8_0", name, experts=9, width=64, channels=channels)
    channels = made.experts.channels
    chosen = choice(2, top_k, 9)
    rows = quantize(numbers(2 * top_k, channels))
    y = torch.full((2, made.experts.width), torch.nan)
    pair.down_pairs(rows, chosen, made.experts, y, asm=False).run()
    wide = dequantize(rows).double().unflatten(0, (2, top_k))
    expected = torch.einsum("rk,rknf,rkf->rn", chosen.weights.double(), made.down[chosen.ids], wide)
    assert_near(y, expected, EXACT)


@ACTIVATIONS
@pytest.mark.parametrize(("upper", "lower"), [("Q4_K", "Q5_0"), ("Q8_0", "Q8_0")])
@pytest.mark.parametrize("rows", [1, 4])
def test_few_rows(layer, numbers, assert_near, upper, lower, rows, activation):
    made = layer(upper, lower, activation=activation)
    x, chosen = rows_of(numbers, rows, made), choice(rows, 3, 5)
    y = torch.full((rows, made.experts.width), torch.nan)
    for launch in pair.pair_launches(x, chosen, made.experts, y, asm=False):
        launch.run()
    exact = made.exact(x, chosen.ids, chosen.weights)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights, as_int8), FLIPS)
    assert_near(y, exact, INT8)


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
    x, chosen = rows_of(numbers, rows, made), choice(rows, 2, 4)
    assert kernels.supports(x, chosen.ids, chosen.weights, *made.stacks)
    y = kernels.experts(x, chosen.ids, chosen.weights, *made.stacks)
    assert_near(y, made.exact(x, chosen.ids, chosen.weights), HALF)


def assert_groups(made, x, chosen, bound, assert_near):
    y = torch.full((x.shape[0], made.experts.width), torch.nan)
    for launch in group.group_launches(x, chosen, made.experts, y):
        launch.run()
    assert_near(y, made.exact(x, chosen.ids, chosen.weights), bound)


def test_halves_of_a_fused_stack_are_read_in_place(planes_stack, numbers, assert_near):
    """Gate and up as views of one stack, as some files hold them."""
    both, down = planes_stack("Q4_K", 4, 128, 256, 5), planes_stack("Q8_0", 4, 256, 64, 6)
    made = placed(both.part(0, 64), both.part(64, 128), down)
    assert made.experts.up.q.storage_offset() > 0
    for rows in (2, 18):
        x, chosen = rows_of(numbers, rows, made), choice(rows, 2, 4)
        assert kernels.supports(x, chosen.ids, chosen.weights, *made.stacks)
        y = kernels.experts(x, chosen.ids, chosen.weights, *made.stacks)
        rounding = {"round": as_int8} if rows == 2 else {}
        expected = made.exact(x, chosen.ids, chosen.weights, **rounding)
        assert_near(y, expected, FLIPS if rows == 2 else HALF)


def test_what_is_between_the_products_ends_at_the_largest_float16(numbers):
    gate, up = torch.full((1, 64, 64), 10.0).half(), torch.full((1, 64, 64), 10.0).half()
    made = placed(gate, up, torch.full((1, 64, 64), 1e-3).half())
    x, chosen = torch.full((2, 64), 5.0), choice(2, 1, 1)
    assert kernels.experts(x, chosen.ids, chosen.weights, *made.stacks).isfinite().all()


# -- what changes no bit --------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4, 17, 66])
def test_at_equal_row_count_neighbours_and_bays_change_no_bit(layer, numbers, rows):
    made = layer("Q8_0", "Q5_0", experts=6, width=64)
    mine = rows_of(numbers, 1, made)[0]
    own, shares = torch.tensor([4, 0, 2]), torch.tensor([0.5, 0.3, 0.2])
    found = []
    for seed, crowd in enumerate([[4, 0, 2], [1, 2, 3], None]):
        place = seed * 5 % rows
        chosen = choice(rows, 3, 6, seed)
        if crowd is not None:
            chosen.ids[:] = torch.tensor(crowd)
        x = rows_of(numbers, rows, made)
        x[place], chosen.ids[place], chosen.weights[place] = mine, own, shares
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        old = made.experts
        moved = [stack.select(old.bays[order]) for stack in (old.gate, old.up, old.down)]
        y = kernels.experts(x, chosen.ids, chosen.weights, *moved, order.argsort(), "silu")
        found.append(y[place])
    assert all(torch.equal(one, found[0]) for one in found)


def test_few_rows_give_the_bits_of_one_row_in_another_company(layer, numbers):
    """Up to 16 rows int8 products do not see the number of rows, from 3 on."""
    made = layer("Q8_0", "Q4_0", width=192)
    x, chosen = rows_of(numbers, 7, made), choice(7, 2, 5)
    y = kernels.experts(x, chosen.ids, chosen.weights, *made.stacks)
    part = kernels.experts(x[3:6], chosen.ids[3:6], chosen.weights[3:6], *made.stacks)
    assert torch.equal(part, y[3:6])


# -- the op ---------------------------------------------------------------------------------------


def test_activations_of_the_matrices_decide_between_int8_and_float16(layer, numbers, assert_near):
    made = layer("Q4_K", "Q8_0")
    x, chosen = rows_of(numbers, 2, made), choice(2, 2, 5)
    expected = made.exact(x, chosen.ids, chosen.weights)
    old = made.experts
    exact = [replace(stack, activations="f16") for stack in (old.gate, old.up, old.down)]
    found = kernels.experts(x, chosen.ids, chosen.weights, *exact, old.bays, "silu")
    assert_near(found, expected, HALF)
    rounded = kernels.experts(x, chosen.ids, chosen.weights, *made.stacks)
    assert float((rounded - expected).norm() / expected.norm()) > HALF[0]


def test_it_says_what_it_cannot(layer, numbers):
    made = layer("Q4_K", "Q8_0")
    x, chosen = rows_of(numbers, 2, made), choice(2, 2, 5)
    old = made.experts

    def reason(**changes):
        given = {"x": x, "gate": old.gate, "up": old.up, "down": old.down, **changes}
        return kernels.supports(
            given["x"], chosen.ids, chosen.weights, given["gate"], given["up"], given["down"],
            old.bays, "silu",
        ).reason  # fmt: skip

    assert reason() == ""
    assert "differently" in reason(up=layer("Q5_K", "Q8_0").experts.up)
    assert "neither" in reason(down=object())
    assert "multiple of 64" in reason(down=replace(old.down, columns=96))
    assert "differently" in reason(gate=torch.zeros(5, 64, 256), up=torch.zeros(5, 64, 256).half())
    assert "not contiguous" in reason(x=x.T.contiguous().T)
    assert "int64" in reason(down=torch.zeros(5, 256, 64, dtype=torch.int64))
    assert "bfloat16" in reason(x=x.bfloat16())

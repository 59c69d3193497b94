"""Experts in bays, against float64 matrices expert by expert."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch

from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk_kernels.experts import op as reference
from kinfolk_kernels.experts import torch_backend as fast
from kinfolk_kernels.experts.op import ExpertsArguments, SharedExpert


def experts_by(backend):
    """``experts(x, ids, weights, gate, up, down, bays, activation=, shared=)`` of a back end."""

    def experts(x, ids, weights, *stacks, activation="silu", shared=None):
        arguments = ExpertsArguments(*stacks, activation, ids.shape[1], x.dtype, shared)
        return backend.experts(arguments, x, ids, weights)

    return experts


fast_experts = experts_by(fast)
BACKENDS = pytest.mark.parametrize(
    "experts", [experts_by(reference), fast_experts], ids=["ref", "torch"]
)
EXPERTS, WIDTH, CHANNELS = 9, 32, 64

# (relative L2 of a row, largest error / rms): two products of a few dozen terms in float32.
F32 = (2e-6, 5e-6)
# The CPU computes in the type of x: every inner number carries a rounding of 2^-9.
NARROW = {torch.float16: (2e-3, 2e-2), torch.bfloat16: (2e-2, 0.1)}


@dataclass
class Stacks:
    """Matrices of every expert, and the bay in which each lies."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    bays: torch.Tensor

    def placed(self):
        order = self.bays.argsort()
        return (self.gate[order], self.up[order], self.down[order], self.bays)


@pytest.fixture
def stacks():
    generator = torch.Generator().manual_seed(4)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    return Stacks(
        draw(EXPERTS, CHANNELS, WIDTH),
        draw(EXPERTS, CHANNELS, WIDTH),
        draw(EXPERTS, WIDTH, CHANNELS),
        torch.randperm(EXPERTS, generator=generator),
    )


def choice(rows, top_k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, EXPERTS, generator=generator)
    return scores.argsort(1)[:, :top_k], torch.rand(rows, top_k, generator=generator)


def exact(x, ids, weights, stacks, activation):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, (chosen, shares) in enumerate(zip(ids.tolist(), weights.double(), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            gate = stacks.gate[expert].double() @ x[row].double()
            up = stacks.up[expert].double() @ x[row].double()
            if activation == "silu":
                curved = gate * gate.sigmoid()
            else:
                curved = torch.nn.functional.gelu(gate, approximate="tanh")
            out[row] += share * (stacks.down[expert].double() @ (curved * up))
    return out


@BACKENDS
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "top_k"), [(1, 1), (1, 4), (2, 3), (17, 2), (65, 4), (5, 9)])
def test_equals_float64(stacks, assert_near, experts, activation, rows, top_k):
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    ids, weights = choice(rows, top_k)
    found = experts(x, ids, weights, *stacks.placed(), activation=activation)
    assert found.dtype == torch.float32
    assert_near(found, exact(x, ids, weights, stacks, activation), F32)


@BACKENDS
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_rows(stacks, assert_near, experts, dtype):
    x = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    ids, weights = choice(20, 3)
    found = experts(x, ids, weights, *stacks.placed())
    assert found.dtype == torch.float32
    assert_near(found, exact(x, ids, weights, stacks, "silu"), NARROW[dtype])


@BACKENDS
def test_packed_experts_equal_their_numbers(stacks, assert_near, experts):
    kind = gguf.GGMLQuantizationType.Q8_0
    packed, dense = [], []
    for stack in stacks.placed()[:3]:
        stored = gguf.quants.quantize(stack.numpy(), kind)
        shape = tuple(stack.shape)
        packed.append(QuantTensor.from_bytes(stored, QuantFormats().named("Q8_0"), shape))
        dense.append(torch.from_numpy(np.ascontiguousarray(gguf.quants.dequantize(stored, kind))))
    x = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(2))
    ids, weights = choice(7, 3)
    plain = Stacks(*(stack[stacks.bays] for stack in dense), stacks.bays)
    found = experts(x, ids, weights, *packed, stacks.bays)
    assert_near(found, exact(x, ids, weights, plain, "silu"), F32)


@BACKENDS
def test_the_bay_of_an_expert_changes_no_bit(stacks, experts):
    x = torch.randn(33, WIDTH, generator=torch.Generator().manual_seed(3))
    ids, weights = choice(33, 4)
    found = experts(x, ids, weights, *stacks.placed())
    for seed in (1, 2):
        moved = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(seed))
        again = Stacks(stacks.gate, stacks.up, stacks.down, moved)
        assert torch.equal(experts(x, ids, weights, *again.placed()), found)


@BACKENDS
def test_company_changes_no_bit(stacks, experts):
    """Neither other rows nor the number of rows that share its experts change a row."""
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(5))
    ids, weights = choice(40, 2)
    found = experts(x, ids, weights, *stacks.placed())
    for rows in (range(2), range(3, 20), range(39, 5, -3), [7] * 18):
        part = list(rows)
        alone = experts(x[part], ids[part], weights[part], *stacks.placed())
        assert torch.equal(alone, found[part])


@pytest.fixture(scope="module")
def wide():
    """Matrices of a size at which a product is cut into blocks."""
    generator = torch.Generator().manual_seed(8)
    gate, up = (torch.randn(EXPERTS, 272, 400, generator=generator) / 20 for _ in range(2))
    down = torch.randn(EXPERTS, 400, 272, generator=generator) / 16
    return Stacks(gate, up, down, torch.randperm(EXPERTS, generator=generator))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 70])
def test_at_equal_row_count_neighbours_and_bays_change_no_bit(wide, dtype, rows):
    """Experts may get all rows, none, or just one more than fits a tile."""
    generator = torch.Generator().manual_seed(rows)
    mine = torch.randn(400, generator=generator).to(dtype)
    chosen, shares = torch.tensor([4, 0, 7]), torch.tensor([0.5, 0.3, 0.2])
    results = []
    for seed, crowd in enumerate([[4, 0, 7], [1, 2, 3], [4, 5, 6], None]):
        place = seed * 5 % rows
        x = torch.randn(rows, 400, generator=generator).to(dtype)
        ids, weights = choice(rows, 3, seed)
        if crowd is not None:
            ids[:] = torch.tensor(crowd)
        x[place], ids[place], weights[place] = mine, chosen, shares
        bays = torch.randperm(EXPERTS, generator=generator)
        moved = Stacks(*(s.to(dtype) for s in (wide.gate, wide.up, wide.down)), bays)
        results.append(fast_experts(x, ids, weights, *moved.placed())[place])
    assert all(torch.equal(result, results[0]) for result in results)


@BACKENDS
def test_packed_experts_may_lie_in_any_bay(stacks, experts):
    kind = gguf.GGMLQuantizationType.Q5_0

    def packed(stack):
        stored = gguf.quants.quantize(stack.numpy(), kind)
        return QuantTensor.from_bytes(stored, QuantFormats().named("Q5_0"), tuple(stack.shape))

    gate, up, down = (packed(stack) for stack in (stacks.gate, stacks.up, stacks.down))
    x = torch.randn(19, WIDTH, generator=torch.Generator().manual_seed(6))
    ids, weights = choice(19, 3)
    found = experts(x, ids, weights, gate, up, down, torch.arange(EXPERTS))
    order = stacks.bays.argsort()
    moved = (gate.select(order), up.select(order), down.select(order))
    assert torch.equal(experts(x, ids, weights, *moved, stacks.bays), found)


@BACKENDS
def test_experts_that_nobody_chose_are_not_read(stacks, experts):
    ids = torch.tensor([[0, 3], [3, 5]])
    weights = torch.ones(2, 2)
    for stack in (stacks.gate, stacks.up, stacks.down):
        stack[[1, 2, 4, 6, 7, 8]] = torch.nan
    assert experts(torch.ones(2, WIDTH), ids, weights, *stacks.placed()).isfinite().all()


@BACKENDS
def test_a_row_that_is_not_finite_spoils_no_other(stacks, experts):
    x = torch.ones(5, WIDTH)
    x[2] = torch.nan
    ids, weights = choice(5, 4)
    found = experts(x, ids, weights, *stacks.placed())
    assert found[2].isnan().all()
    assert found[[0, 1, 3, 4]].isfinite().all()


@BACKENDS
@pytest.mark.parametrize("gated", [False, True])
def test_the_shared_expert_is_added_to_every_row(stacks, assert_near, experts, gated):
    generator = torch.Generator().manual_seed(7)
    gate, up = torch.randn(2, 40, WIDTH, generator=generator) / WIDTH**0.5
    down = torch.randn(WIDTH, 40, generator=generator) / 40**0.5
    shared_gate = torch.randn(WIDTH, generator=generator) / WIDTH**0.5 if gated else None
    x = torch.randn(6, WIDTH, generator=generator)
    ids, weights = choice(6, 3)
    shared = SharedExpert(gate, up, down, shared_gate)
    found = experts(x, ids, weights, *stacks.placed(), activation="gelu_tanh", shared=shared)
    wide = x.double()
    curved = torch.nn.functional.gelu(wide @ gate.double().T, approximate="tanh")
    added = (curved * (wide @ up.double().T)) @ down.double().T
    if gated:
        added = added * (wide @ shared_gate.double()).sigmoid()[:, None]
    assert_near(found, exact(x, ids, weights, stacks, "gelu_tanh") + added, F32)

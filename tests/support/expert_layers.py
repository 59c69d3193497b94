"""Layers of experts for tests of kernels, and what small ones compute in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.int8_rows import dequantize, quantize
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import LAYOUTS, PlanesStack, unpack

EXACT = (3e-6, 2e-5)
"""Exact integer products or products of float32, summed in float32."""

HALF = (4e-3, 3e-2)
"""Weights, rows and what is between the products as float16; of random scales and minima, many a
weight is a small difference of large numbers."""

FLIPS = (6e-3, 5e-2)
"""What is between the products in int8 may round to the next of 255 steps."""

INT8 = (5e-2, 0.3)
"""Rows of 64 numbers in int8, between them one that is four times as large as usual."""


@dataclass
class Layer:
    """Experts in bays, and the matrices of each expert as float64."""

    experts: ExpertsArguments
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def run(self, x, choice, **changes):
        """The result of the op."""
        from kinfolk_kernels.experts import triton_backend as kernels

        arguments = replace(self.experts, **changes)
        return kernels.experts(arguments, x, choice.ids, choice.weights)

    def inner(self, x, expert):
        gate, up = self.gate[expert] @ x, self.up[expert] @ x
        if self.experts.activation == "silu":
            return gate * gate.sigmoid() * up
        return torch.nn.functional.gelu(gate, approximate="tanh") * up

    def exact(self, x, ids, weights, round=lambda x: x, between=lambda inner: inner):
        """In float64; ``round`` changes the rows, ``between`` the input of the last matrix."""
        x = round(x.double())
        out = torch.zeros(len(ids), self.down.shape[1], dtype=torch.float64)
        for row, (chosen, shares) in enumerate(zip(ids.tolist(), weights.double(), strict=True)):
            for expert, share in zip(chosen, shares, strict=True):
                out[row] += share * (self.down[expert] @ between(self.inner(x[row], expert)))
        return out


def numbers_of(stack):
    if isinstance(stack, PlanesStack):
        return torch.stack([unpack(stack[i]) for i in range(len(stack))]).double()
    return stack.double()


def placed(gate, up, down, activation="silu", seed=0):
    """The stacks as the bays hold them; expert e lies in a bay of its own."""
    bays = torch.randperm(gate.shape[0], generator=torch.Generator().manual_seed(seed))
    dense = (numbers_of(stack)[bays] for stack in (gate, up, down))
    experts = ExpertsArguments(gate, up, down, bays, activation, 2, torch.float16)
    return Layer(experts, *dense)


def random_stack(name, experts, rows, columns, device="cuda"):
    """Planes of random codes, whose numbers have a variance of about 1 / columns."""
    planes = empty(name, experts * rows, columns, device)
    for plane in planes.tensors:
        plane.random_(-(2**31), 2**31 - 1)
    if planes.scales is not None:
        planes.scales.bitwise_and_(0x1F1F1F1F)
    halves = 0.5 + torch.rand(*planes.supers.shape, 2, device=device)
    planes.supers.copy_(halves.half().view(torch.int32).squeeze(-1))
    size = float(unpack(planes[:1024]).std()) * columns**0.5
    planes.supers.copy_((planes.supers.view(torch.float16) / size).view(torch.int32))
    return planes.stacked(experts)


@pytest.fixture
def planes_stack(random_planes):
    """``planes_stack(format, experts, rows, columns, seed=)``: numbers of a normal size."""

    def make(name, experts, rows, columns, seed=0):
        planes = random_planes(name, experts * rows, columns, seed)
        size = float(unpack(planes).std()) * columns**0.5
        supers = (planes.supers.view(torch.float16) / size).view(torch.int32)
        return replace(planes, supers=supers).stacked(experts)

    return make


@pytest.fixture
def layer(planes_stack):
    """``layer(gate and up's format, down's, experts=, width=, channels=)``."""

    def make(upper, lower, experts=5, width=64, channels=64, activation="silu", outputs=None):
        if LAYOUTS[upper].block == 256:
            width = -(-width // 256) * 256
        if LAYOUTS[lower].block == 256:
            channels = -(-channels // 256) * 256
        gate, up = (planes_stack(upper, experts, channels, width, seed) for seed in (1, 2))
        return placed(
            gate, up, planes_stack(lower, experts, outputs or width, channels, 3), activation
        )

    return make


def choice(rows, top_k, experts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(rows, experts, generator=generator).argsort(1)[:, :top_k].contiguous()
    return Choice(ids, torch.rand(rows, top_k, generator=generator))


def as_int8(numbers):
    return (
        dequantize(quantize(numbers.float().view(-1, numbers.shape[-1]))).double().view_as(numbers)
    )


def rows_of(numbers, rows, layer):
    """Rows without outliers, whose products are of a normal size."""
    return numbers(rows, layer.experts.width).clamp(-4, 4)

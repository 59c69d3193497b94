"""silu(gate) * up, against float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.silu_mul.reference import silu_mul

# One exponential and three roundings in float32, then one to the output type.
BOUND = {
    torch.float32: (2e-7, 4e-6),
    torch.float16: (5e-4, 8e-3),
    torch.bfloat16: (4e-3, 0.1),
}


def exact(gate, up):
    return gate.double() / (1 + (-gate.double()).exp()) * up.double()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 129)])
def test_equals_float64(numbers, assert_near, dtype, shape):
    gate, up = (numbers(*shape).clamp(-20, 20).to(dtype) for _ in range(2))
    found = silu_mul(gate, up)
    assert found.dtype == dtype
    assert_near(found.flatten()[None], exact(gate, up).flatten()[None], BOUND[dtype])


def test_the_result_has_the_type_of_up(numbers):
    assert silu_mul(numbers(2, 3), numbers(2, 3).half()).dtype == torch.float16


def test_large_gates_neither_overflow_nor_lose_their_sign():
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]])
    found = silu_mul(gate, torch.ones(1, 5))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0, 0, 100, 1e4]]), rtol=0, atol=1e-30)

"""gelu(gate) * up with the tanh form, against float64."""

from __future__ import annotations

import math

import pytest
import torch

from kinfolk_kernels.gelu_mul.reference import gelu_mul

# The left tail is 1 + tanh near -1, where float32 keeps few digits of what is nearly nothing: the
# whole result is the row. Then one rounding to the output type.
BOUND = {
    torch.float32: (2e-7, 3e-6),
    torch.float16: (5e-4, 8e-3),
    torch.bfloat16: (4e-3, 0.1),
}


def exact(gate, up):
    x = gate.double()
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + inner.tanh()) * up.double()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 129)])
def test_equals_float64(numbers, assert_near, dtype, shape):
    gate, up = (numbers(*shape).clamp(-20, 20).to(dtype) for _ in range(2))
    found = gelu_mul(gate, up)
    assert found.dtype == dtype
    assert_near(found.flatten()[None], exact(gate, up).flatten()[None], BOUND[dtype])


def test_it_is_the_tanh_form():
    """At -1 the two forms differ in the fourth digit."""
    one = torch.ones(1, 1)
    assert float(gelu_mul(-one, one)) == pytest.approx(-0.15880801, abs=1e-7)


def test_the_result_has_the_type_of_up(numbers):
    assert gelu_mul(numbers(2, 3), numbers(2, 3).half()).dtype == torch.float16


def test_large_gates_neither_overflow_nor_lose_their_sign():
    gate = torch.tensor([[-1e13, -100.0, 0.0, 100.0, 1e13]])
    found = gelu_mul(gate, torch.ones(1, 5))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0, 0, 100, 1e13]]), rtol=0, atol=0)

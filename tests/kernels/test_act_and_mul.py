"""activation(gate) * up, against float64."""

from __future__ import annotations

import math

import pytest
import torch

from kinfolk_kernels.act_and_mul.op import ActAndMulArguments, act_and_mul, product

# silu: one exponential and three roundings in float32. gelu: the left tail is 1 + tanh near -1,
# where float32 keeps few digits; the whole result is the row. Then one rounding to the output type.
BOUND = {
    ("silu", torch.float32): (2e-7, 4e-6),
    ("gelu_tanh", torch.float32): (2e-7, 3e-6),
    **{(name, torch.float16): (5e-4, 8e-3) for name in ("silu", "gelu_tanh")},
    **{(name, torch.bfloat16): (4e-3, 0.1) for name in ("silu", "gelu_tanh")},
}
ACTIVATIONS = pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])


def exact(activation, gate, up):
    x = gate.double()
    if activation == "silu":
        return x / (1 + (-x).exp()) * up.double()
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + inner.tanh()) * up.double()


@pytest.mark.parametrize(("activation", "dtype"), BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 129)])
def test_equals_float64(numbers, assert_near, activation, dtype, shape):
    gate, up = (numbers(*shape).clamp(-20, 20).to(dtype) for _ in range(2))
    arguments = ActAndMulArguments(activation, dtype, gate.device)
    result = act_and_mul(arguments, gate, up)
    assert result.dtype == dtype
    expected = exact(activation, gate, up)
    assert_near(result.flatten()[None], expected.flatten()[None], BOUND[activation, dtype])


def test_gelu_is_the_tanh_form():
    """At -1 the two forms differ in the fourth digit."""
    one = torch.ones(1, 1)
    assert float(product("gelu_tanh", -one, one)) == pytest.approx(-0.15880801, abs=1e-7)


@ACTIVATIONS
def test_the_result_has_the_type_of_up(numbers, activation):
    assert product(activation, numbers(2, 3), numbers(2, 3).half()).dtype == torch.float16


@pytest.mark.parametrize(
    ("activation", "far", "bound"), [("silu", 1e4, 1e-30), ("gelu_tanh", 1e13, 0)]
)
def test_large_gates_neither_overflow_nor_lose_their_sign(activation, far, bound):
    gate = torch.tensor([[-far, -100.0, 0.0, 100.0, far]])
    result = product(activation, gate, torch.ones(1, 5))
    torch.testing.assert_close(result, torch.tensor([[0.0, 0, 0, 100, far]]), rtol=0, atol=bound)

"""Gated products in the interpreter, against float64 and the int8 form."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.gelu_mul import triton_backend as gelu
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, dequantize, made_int8, quantize
from kinfolk_kernels.silu_mul import triton_backend as silu

pytestmark = pytest.mark.interpreter

BOUND = {torch.float32: (1e-6, 1e-5), torch.float16: (5e-4, 5e-2)}
DTYPES = pytest.mark.parametrize("dtype", BOUND)


def curve_silu(x):
    return torch.nn.functional.silu(x)


def curve_gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


OPS = pytest.mark.parametrize(
    ("product", "rows_of", "activation"),
    [
        (silu.silu_mul, silu.silu_mul_rows, curve_silu),
        (gelu.gelu_mul, gelu.gelu_mul_rows, curve_gelu),
    ],
    ids=["silu", "gelu"],
)


@pytest.fixture(autouse=True)
def poison():
    """Fresh memory is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@OPS
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 3, 64), (2, 1025)])
def test_equals_float64(numbers, assert_near, product, rows_of, activation, dtype, shape):
    gate, up = numbers(*shape).half(), numbers(*shape).to(dtype)
    found = product(gate, up)
    assert found.dtype == dtype
    assert_near(found, activation(gate.double()) * up.double(), BOUND[dtype])


@OPS
@pytest.mark.parametrize("width", [64, 192, 1088])
def test_halves_of_one_matrix_to_float_and_int8(
    numbers, assert_near, product, rows_of, activation, width
):
    both = torch.full((7, 2 * width + 6), torch.nan)
    both[2:5, 3:-3] = numbers(3, 2 * width)
    gate, up = both[2:5, 3:-3].chunk(2, 1)
    found = rows_of(gate, up, torch.float16, int8=True)
    expected = activation(gate.double()) * up.double()
    assert_near(found.values, expected, BOUND[torch.float16])
    rows = quantize(expected.float())
    torch.testing.assert_close(found.int8.scales, rows.scales, rtol=1e-5, atol=0)
    q = found.int8.words.view(torch.int8).int()
    assert int((q - rows.words.view(torch.int8).int()).abs().max()) <= 1


@OPS
def test_far_gates_stay_finite(product, rows_of, activation):
    gate = torch.tensor([[-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4]])
    found = product(gate, torch.ones_like(gate))
    torch.testing.assert_close(found, activation(gate.double()).float(), rtol=1e-5, atol=1e-7)


def test_refusals_say_why(numbers):
    verdict = silu.supports(numbers(2, 4), numbers(2, 4).bfloat16())
    assert verdict.reason == "Triton's interpreter computes wrong numbers from bfloat16"


def test_few_rows_get_int8_rows_beside_them(numbers):
    for rows, beside in ((MAX_INT8_ROWS, True), (MAX_INT8_ROWS + 1, False)):
        gate, up = numbers(rows, 192), numbers(rows, 192)
        found = silu.silu_mul(gate, up)
        made = made_int8(found)
        assert (made is not None) == beside
        if made is not None:
            assert torch.allclose(dequantize(made), found, atol=float(made.scales.max()))

"""Gated products in the interpreter, against float64 and the int8 form."""

from __future__ import annotations

import pytest
import torch
from int8_sums import assert_sums_are_those_of_the_rows
from mma_rows_read import assert_rounded_once, restored

from kinfolk_kernels.act_and_mul import triton_backend as kernels
from kinfolk_kernels.act_and_mul.op import ActAndMulArguments
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, dequantize, made_int8, quantize

pytestmark = pytest.mark.interpreter

BOUND = {torch.float32: (1e-6, 1e-5), torch.float16: (5e-4, 5e-2)}
DTYPES = pytest.mark.parametrize("dtype", BOUND)


EXACT = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
ACTIVATIONS = pytest.mark.parametrize("activation", EXACT)


@pytest.fixture(autouse=True)
def poison():
    """Fresh memory is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@ACTIVATIONS
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 3, 64), (2, 1025)])
def test_equals_float64(numbers, assert_near, activation, dtype, shape):
    gate, up = numbers(*shape).half(), numbers(*shape).to(dtype)
    found = kernels.multiply(activation, gate, up)
    assert found.dtype == dtype
    assert_near(found, EXACT[activation](gate.double()) * up.double(), BOUND[dtype])


@ACTIVATIONS
@pytest.mark.parametrize("width", [64, 192, 1088])
def test_halves_of_one_matrix_to_float_and_int8(numbers, assert_near, activation, width):
    both = torch.full((7, 2 * width + 6), torch.nan)
    both[2:5, 3:-3] = numbers(3, 2 * width)
    gate, up = both[2:5, 3:-3].chunk(2, 1)
    found = kernels.multiply_rows(activation, gate, up, torch.float16, int8=True)
    expected = EXACT[activation](gate.double()) * up.double()
    assert_near(found.values, expected, BOUND[torch.float16])
    rows = quantize(expected.float())
    torch.testing.assert_close(found.int8.scales, rows.scales, rtol=1e-5, atol=0)
    q = found.int8.words.view(torch.int8).int()
    assert int((q - rows.words.view(torch.int8).int()).abs().max()) <= 1
    assert_sums_are_those_of_the_rows(found.int8)


@ACTIVATIONS
@pytest.mark.parametrize(("rows", "width"), [(1, 128), (17, 384), (35, 640), (2, 4224)])
def test_rows_for_tensor_cores(numbers, activation, rows, width):
    """In the order for warps, and for warpgroups (from 33 rows on), in one tile and two."""
    gate, up = numbers(rows, 2 * width).chunk(2, 1)
    up[0] *= 1e5
    found = kernels.multiply_rows(activation, gate, up, torch.float32, int8=False, mma=True)
    expected = kernels.multiply_rows(activation, gate, up, torch.float32, int8=False).values
    assert torch.equal(found.values, expected)
    most = (gate.clamp_min(0.3) * up.abs()).amax(1)
    assert_rounded_once(found.mma, expected, most=most)


def test_tiles_of_a_row_in_one_program_or_several_give_the_same_bits(numbers, monkeypatch):
    gate, up = numbers(2, 2 * 8320).chunk(2, 1)
    parts = ("silu", gate, up, torch.float16)
    apart = kernels.multiply_rows(*parts, int8=False, mma=True)
    for most in (1, 5):
        monkeypatch.setattr(kernels, "MOST_ROW_PROGRAMS", most)
        found = kernels.multiply_rows(*parts, int8=False, mma=True)
        assert torch.equal(found.values, apart.values)
        assert torch.equal(restored(found.mma), restored(apart.mma))


@ACTIVATIONS
@pytest.mark.parametrize("width", [64, 1001, 2112])
def test_lanes_that_move_16_bytes_at_once_give_the_same_bits(
    numbers, monkeypatch, activation, width
):
    gate, up = numbers(3, 2 * width).half().chunk(2, 1)
    expected = kernels.multiply_rows(activation, gate, up, torch.float16, int8=False)
    monkeypatch.setattr(kernels, "WIDE_ROWS", 1)
    found = kernels.multiply_rows(activation, gate, up, torch.float16, int8=False)
    assert torch.equal(found.values, expected.values)


@ACTIVATIONS
def test_far_gates_stay_finite(activation):
    gate = torch.tensor([[-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4]])
    found = kernels.multiply(activation, gate, torch.ones_like(gate))
    torch.testing.assert_close(
        found, EXACT[activation](gate.double()).float(), rtol=1e-5, atol=1e-7
    )


def test_refusals_say_why():
    cpu = torch.device("cpu")
    assert kernels.supports(ActAndMulArguments("silu", torch.float32, cpu))
    verdict = kernels.supports(ActAndMulArguments("silu", torch.bfloat16, cpu))
    assert verdict.reason == "Triton's interpreter computes wrong numbers from bfloat16"


def test_few_rows_get_int8_rows_beside_them(numbers):
    for rows, beside in ((MAX_INT8_ROWS, True), (MAX_INT8_ROWS + 1, False)):
        gate, up = numbers(rows, 192), numbers(rows, 192)
        found = kernels.act_and_mul(ActAndMulArguments("silu", up.dtype, up.device), gate, up)
        made = made_int8(found)
        assert (made is not None) == beside
        if made is not None:
            assert torch.allclose(dequantize(made), found, atol=float(made.scales.max()))

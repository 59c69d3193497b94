"""The matrix-vector kernel against float64 over the same quantised numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.int8_rows import dequantize, quantize
from kinfolk_kernels.linear.gemv import gemv, warps_for
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# Exact integer products, a scale and a sum in float32: a few roundings a word.
BOUND = 2e-6


def multiply(planes, x, warps=1):
    out = torch.full((x.shape[0], planes.rows), torch.nan)
    gemv([planes], quantize(x), [out], warps, asm=False).run()
    return out


def error(found, planes, x):
    expected = dequantize(quantize(x)).double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("rows", "columns", "warps"), [(13, 768, 1), (16, 2048, 1), (7, 1024, 2), (12, 1280, 2)]
)
def test_products_equal_float64(random_planes, numbers, name, rows, columns, warps):
    planes = random_planes(name, rows, columns, seed=rows)
    x = numbers(1, columns)
    assert error(multiply(planes, x, warps), planes, x) <= BOUND


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("batch", [2, 3, 4])
def test_several_rows_have_the_bits_of_each_alone(random_planes, numbers, name, batch):
    planes, x = random_planes(name, 13, 768, seed=5), numbers(batch, 768)
    found = multiply(planes, x)
    assert error(found, planes, x) <= BOUND
    for row in range(batch):
        assert torch.equal(found[row], multiply(planes, x[row : row + 1])[0])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0"])
def test_rows_that_are_no_multiple_of_a_block_of_256(random_planes, numbers, name):
    planes = random_planes(name, 9, 704, seed=7)
    x = numbers(1, 704)
    assert error(multiply(planes, x), planes, x) <= BOUND


@pytest.mark.parametrize("name", LAYOUTS)
def test_extreme_activations_do_not_overflow(random_planes, name):
    planes = random_planes(name, 8, 512, seed=1)
    for sign in (1.0, -1.0):
        x = torch.full((1, 512), sign * 3e4)
        assert error(multiply(planes, x), planes, x) <= 20 * BOUND


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_column_of_ones_selects_a_column_of_the_matrix(random_planes, name):
    planes = random_planes(name, 8, 512, seed=3)
    for column in (5, 37, 200, 511):
        x = torch.zeros(1, 512)
        x[0, column] = 127.0
        found = multiply(planes, x)
        expected = unpack(planes)[:, column] * 127
        assert torch.allclose(found[0], expected, rtol=1e-5, atol=1e-5)


def test_several_matrices_in_one_launch_give_the_bits_of_each_alone(random_planes, numbers):
    x = numbers(1, 768)
    shapes = {"Q8_0": 6, "Q5_K": 44, "Q4_K": 30, "Q6_K": 17}
    matrices = [random_planes(name, rows, 768, seed=rows) for name, rows in shapes.items()]
    outs = [torch.full((1, planes.rows), torch.nan) for planes in matrices]
    gemv(matrices, quantize(x), outs, 1, asm=False).run()
    for planes, out in zip(matrices, outs, strict=True):
        assert torch.equal(out, multiply(planes, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_results_come_in_the_type_of_the_output(random_planes, numbers, dtype):
    planes, x = random_planes("Q4_K", 8, 512, seed=2), numbers(1, 512)
    out = torch.full((1, 8), torch.nan, dtype=dtype)
    gemv([planes], quantize(x), [out], asm=False).run()
    assert torch.equal(out, multiply(planes, x, warps_for([planes])).to(dtype))


def test_warps_depend_on_shapes_alone(random_planes):
    small, tall = random_planes("Q4_K", 8, 512, seed=0), random_planes("Q6_K", 8, 512, seed=1)
    assert warps_for([small]) == warps_for([tall])

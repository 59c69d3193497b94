"""Products with matrices in planes: every number of rows, the way back to numbers, and refusals."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.embedding import triton_backend as embedding
from kinfolk_kernels.embedding.reference import embedding as rows_of
from kinfolk_kernels.int8_rows import made_int8, quantize, with_int8
from kinfolk_kernels.linear import reference
from kinfolk_kernels.linear import triton_backend as kernels
from kinfolk_kernels.linear.dequantize import dequantize
from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

INT8, HALF, EXACT = 5e-2, 2e-3, 1e-6
"""Relative error of a row: eight bits of x, eleven of everything, nothing but sums."""


def error(found, expected):
    return float(((found.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize(
    ("rows", "activations", "bound"),
    [
        (1, "int8", INT8),
        (2, "int8", INT8),
        (16, "int8", INT8),
        (1, "f16", HALF),
        (17, "int8", HALF),
        (65, "int8", EXACT),
    ],
)
def test_the_number_of_rows_decides(random_planes, numbers, rows, activations, bound):
    planes = random_planes("Q4_K", 20, 256, activations=activations)
    x = numbers(rows, 256)
    found = kernels.linear(x, planes)
    assert found.dtype == x.dtype
    expected = x.double() @ unpack(planes).double().T
    assert error(found, expected) <= bound
    if bound > EXACT:
        assert error(found, expected) > bound / 200


def test_matrices_that_read_the_same_rows(random_planes, numbers):
    names = ("Q4_K", "Q6_K", "Q8_0", "Q5_K", "Q4_0")
    weights = [random_planes(name, 8 + 3 * i, 256, seed=i) for i, name in enumerate(names)]
    weights.insert(2, numbers(5, 256))
    x = numbers(2, 256)
    found = kernels.linears(x, weights)
    for y, weight in zip(found, weights, strict=True):
        assert torch.equal(y, kernels.linear(x, weight))
    for y, expected in zip(found, reference.linears(x, weights), strict=True):
        assert error(y, expected.double()) <= INT8


def test_rows_without_any_and_rows_with_strides(random_planes, numbers):
    planes, wide = random_planes("Q8_0", 8, 64), numbers(3, 200)
    assert kernels.linear(wide[:0, :64], planes).shape == (0, 8)
    for rows in (wide[:, 16:80], numbers(64, 3).T):
        assert torch.equal(kernels.linear(rows, planes), kernels.linear(rows.contiguous(), planes))


def test_int8_rows_made_beside_are_used(random_planes, numbers):
    planes, x = random_planes("Q4_K", 8, 256), numbers(2, 256)
    assert made_int8(x) is None
    marked = with_int8(torch.zeros(2, 256), quantize(x))
    assert made_int8(marked) is not None
    assert made_int8(marked[:]) is None
    assert torch.equal(kernels.linear(marked, planes), kernels.linear(x, planes))


@pytest.mark.parametrize("name", LAYOUTS)
def test_dequantised_rows_are_the_definitions_bit_for_bit(random_planes, name):
    planes = random_planes(name, 45, 768, seed=1)
    numbers = unpack(planes)
    out = torch.full((45, 768), torch.nan)
    dequantize([planes], [out], asm=False).run()
    assert torch.equal(out, numbers)
    half = torch.full((6, 768), torch.nan, dtype=torch.float16)
    dequantize([planes[8:14]], [half], asm=False).run()
    assert torch.equal(half, numbers[8:14].half())


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "Q5_0"])
def test_rows_of_a_table(random_planes, name):
    table = random_planes(name, 23, 512, seed=2)
    tokens = torch.tensor([22, 0, 7, 7, 13])
    assert torch.equal(embedding.embedding(tokens, table), rows_of(tokens, table))
    assert torch.equal(embedding.embedding(tokens, table, 0.3), rows_of(tokens, table, 0.3))
    assert embedding.embedding(tokens[:0], table).shape == (0, 512)


@pytest.mark.parametrize("slice", [64, 72, 128, 1000])
def test_large_products_in_slices(random_planes, numbers, slice):
    """Slices end inside a matrix, at its end, and inside a group of four rows of the next."""
    formats = {"Q5_K": 150, "Q8_0": 3, "Q4_K": 64, "Q6_K": 129}
    matrices = [random_planes(name, rows, 256) for name, rows in formats.items()]
    x = numbers(70, 256)
    found = gemm_large(matrices, x, slice=slice * 256, asm=False)
    for planes, out in zip(matrices, found, strict=True):
        assert out.shape == (70, planes.rows)
        assert error(out, x.double() @ unpack(planes).double().T) <= EXACT


def test_refusals_name_what_is_wrong(random_planes, numbers, monkeypatch):
    planes, x = random_planes("Q4_K", 8, 256), numbers(2, 256)
    assert kernels.supports(x, planes)
    assert kernels.supports(x, x)
    assert "bfloat16" in kernels.supports(x.bfloat16(), planes).reason
    assert "float64" in kernels.supports(x.double(), planes).reason
    assert "3 dimensions" in kernels.supports(x[None], planes).reason
    assert "neither" in kernels.supports(x, object()).reason
    assert "not in planes" in embedding.supports(torch.tensor([1]), x).reason
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    monkeypatch.setattr(embedding, "INTERPRETED", False)
    assert "rows are on cpu" in kernels.supports(x, planes).reason
    assert "tokens are on cpu" in embedding.supports(torch.tensor([1]), planes).reason

"""Products with matrices in planes: every number of rows, the way back to numbers, and refusals."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels import device
from kinfolk_kernels.embedding import triton_backend as embedding
from kinfolk_kernels.embedding.op import EmbeddingArguments
from kinfolk_kernels.embedding.op import embedding as rows_of
from kinfolk_kernels.int8_rows import made_int8, quantize, with_int8
from kinfolk_kernels.linear import op as reference
from kinfolk_kernels.linear import triton_backend as kernels
from kinfolk_kernels.linear.dequantize import dequantize
from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.linear.op import LinearArguments
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

INT8, HALF, EXACT = 5e-2, 2e-3, 3e-6
"""Relative error of a row: eight bits of x, eleven of everything, nothing but float32 sums, whose
order is that of the machine."""


def product(x, weight):
    return kernels.products(x, (weight,))[0]


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
    found = product(x, planes)
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
    found = kernels.linear(LinearArguments(tuple(weights), x.dtype, x.device), x)
    for y, weight in zip(found, weights, strict=True):
        assert torch.equal(y, product(x, weight))
    for y, expected in zip(
        found, (reference.product(x, weight) for weight in weights), strict=True
    ):
        assert error(y, expected.double()) <= INT8


def test_rows_without_any_and_rows_with_strides(random_planes, numbers):
    planes, wide = random_planes("Q8_0", 8, 64), numbers(3, 200)
    assert product(wide[:0, :64], planes).shape == (0, 8)
    for rows in (wide[:, 16:80], numbers(64, 3).T):
        assert torch.equal(product(rows, planes), product(rows.contiguous(), planes))


def test_int8_rows_made_beside_are_used(random_planes, numbers):
    planes, x = random_planes("Q4_K", 8, 256), numbers(2, 256)
    assert made_int8(x) is None
    marked = with_int8(torch.zeros(2, 256), quantize(x))
    assert made_int8(marked) is not None
    assert made_int8(marked[:]) is None
    assert torch.equal(product(marked, planes), product(x, planes))


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
    for arguments in (EmbeddingArguments(table), EmbeddingArguments(table, 0.3)):
        assert torch.equal(embedding.embedding(arguments, tokens), rows_of(arguments, tokens))
    assert embedding.embedding(arguments, tokens[:0]).shape == (0, 512)


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


def test_refusals_name_what_is_wrong(random_planes, numbers):
    planes, dense = random_planes("Q4_K", 8, 256), numbers(2, 256)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")

    def refusal(weight, dtype=torch.float32, device=cpu):
        return kernels.supports(LinearArguments((weight,), dtype, device)).reason

    assert refusal(planes) == refusal(dense) == ""
    assert "bfloat16" in refusal(planes, torch.bfloat16)
    assert "float64" in refusal(planes, torch.float64)
    assert "neither" in refusal(object())
    assert "on cpu, the model on cuda" in refusal(planes, device=gpu)
    assert embedding.supports(EmbeddingArguments(planes))
    assert "not packed" in embedding.supports(EmbeddingArguments(dense)).reason


def test_compiled_kernels_run_on_cuda_devices(random_planes, monkeypatch):
    """A kernel that is not interpreted is one of Triton's own type."""
    monkeypatch.setattr(device.triton, "JITFunction", object)
    planes, cpu = random_planes("Q4_K", 8, 256), torch.device("cpu")
    for verdict in (
        kernels.supports(LinearArguments((planes,), torch.float32, cpu)),
        embedding.supports(EmbeddingArguments(planes)),
    ):
        assert verdict.reason == "it runs on CUDA devices, the model is on cpu"

"""The matrix-vector kernel against float64 over the same quantised numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.int8_rows import dequantize, quantize
from kinfolk_kernels.linear.gemv import gemv
from kinfolk_kernels.packing import pack
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# Exact integer products, a scale and a sum in float32: a few roundings a word.
BOUND = 2e-6


def random_planes(name, rows, columns, seed):
    layout = LAYOUTS[name]
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, columns // layout.block, layout.nbytes)
    raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    scales = torch.randn(shape[:2], generator=generator).half()
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(name, (0,)):
        raw[..., at : at + 2] = scales[..., None].view(torch.uint8)
    return pack(name, raw.flatten(1), columns)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("rows", "columns"), [(13, 768), (16, 512)])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_products_equal_float64(name, rows, columns, batch):
    planes = random_planes(name, rows, columns, seed=batch)
    x = quantize(torch.randn(batch, columns, generator=torch.Generator().manual_seed(rows)))
    out = torch.full((batch, rows), torch.nan)
    gemv(planes, x, out, groups=2, words=32, asm=False)
    expected = dequantize(x).double() @ unpack(planes).double().T
    assert float(((out - expected).norm(dim=1) / expected.norm(dim=1)).max()) <= BOUND


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0"])
def test_rows_that_are_no_multiple_of_a_block_of_256(name):
    planes = random_planes(name, 9, 704, seed=7)
    x = quantize(torch.randn(2, 704, generator=torch.Generator().manual_seed(8)))
    out = torch.full((2, 9), torch.nan)
    gemv(planes, x, out, groups=1, words=64, asm=False)
    expected = dequantize(x).double() @ unpack(planes).double().T
    assert float(((out - expected).norm(dim=1) / expected.norm(dim=1)).max()) <= BOUND


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_column_of_ones_selects_a_column_of_the_matrix(name):
    planes = random_planes(name, 8, 512, seed=3)
    for column in (0, 5, 37, 200, 511):
        x = torch.zeros(1, 512)
        x[0, column] = 127.0
        out = torch.full((1, 8), torch.nan)
        gemv(planes, quantize(x), out, words=32, asm=False)
        expected = unpack(planes)[:, column] * 127
        assert torch.allclose(out[0], expected, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    planes = random_planes("Q4_K", 8, 512, seed=4)
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(5))
    together, alone = torch.empty(4, 8), torch.empty(1, 8)
    gemv(planes, quantize(x), together, words=32, asm=False)
    gemv(planes, quantize(x[2:3]), alone, words=32, asm=False)
    assert torch.equal(together[2:3], alone)

"""The small matrix product against float64 over the same rows and the matrix's exact numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.linear.gemm_small import gemm_small, split_for
from kinfolk_kernels.packing import pack
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# A scale, a minimum and a weight are each rounded to float16: 2^-11 apiece.
BOUND = 1e-3


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
@pytest.mark.parametrize(
    ("rows", "columns", "batch", "split"), [(13, 768, 5, 1), (70, 512, 16, 2), (66, 512, 17, 4)]
)
def test_products_equal_float64(name, rows, columns, batch, split):
    planes = random_planes(name, rows, columns, seed=batch)
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(rows)).half()
    found = gemm_small(planes, x, split=split)
    expected = x.double() @ unpack(planes).double().T
    assert float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()) <= BOUND


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0"])
def test_rows_that_are_no_multiple_of_a_block_of_256(name):
    planes = random_planes(name, 9, 704, seed=7)
    x = torch.randn(3, 704, generator=torch.Generator().manual_seed(8)).half()
    found = gemm_small(planes, x, split=4)
    expected = x.double() @ unpack(planes).double().T
    assert float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()) <= BOUND


def test_a_row_does_not_depend_on_the_rows_beside_it():
    planes = random_planes("Q4_K", 64, 512, seed=4)
    x = torch.randn(16, 512, generator=torch.Generator().manual_seed(5)).half()
    other = torch.randn(16, 512, generator=torch.Generator().manual_seed(6)).half()
    other[7] = x[2]
    assert torch.equal(gemm_small(planes, x)[2], gemm_small(planes, other)[7])


def test_the_split_depends_on_the_shape_alone_and_leaves_long_sums():
    assert split_for(248320, 5120) == 1
    assert split_for(5120, 17408) > split_for(34816, 5120)
    assert 5120 // 64 // split_for(1024, 5120) >= 8

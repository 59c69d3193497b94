"""The small matrix product against float64 over the same rows and the matrix's exact numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.linear.gemm_small import SmallTile, gemm_small, tile_for
from kinfolk_kernels.linear.prepare import half_rows
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# A scale, a minimum, a weight and x are each rounded to float16: 2^-11 apiece.
BOUND = 1e-3


def multiply(matrices, x, tile):
    outs = [torch.full((x.shape[0], planes.rows), torch.nan) for planes in matrices]
    launch = gemm_small(matrices, half_rows(x), outs, tile, asm=False)
    launch.run()
    assert not launch.arguments["done_ptr"].any() or tile.split == 1
    return outs


def error(found, planes, x):
    expected = x.double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize(
    ("name", "batch", "rows", "columns", "tile"),
    [
        (name, batch, rows, columns, tile)
        for index, name in enumerate(LAYOUTS)
        for batch, rows, columns, tile in (
            [(5, 13, 512, SmallTile(4)), (16, 40, 768, SmallTile(4, 2))]
            if index % 2
            else [(1, 35, 1024, SmallTile(4, 1, 2)), (20, 17, 512, SmallTile(2, 4))]
        )
    ],
)
def test_products_equal_float64(random_planes, numbers, name, batch, rows, columns, tile):
    planes, x = random_planes(name, rows, columns, seed=batch), numbers(batch, columns)
    assert error(*multiply([planes], x, tile), planes, x) <= BOUND


def test_rows_that_are_no_multiple_of_a_block_of_256(random_planes, numbers):
    planes, x = random_planes("Q5_0", 9, 704, seed=7), numbers(3, 704)
    assert error(*multiply([planes], x, SmallTile(2, 2)), planes, x) <= BOUND


@pytest.mark.parametrize("size", [1e-7, 3e5, 0.0])
def test_rows_of_any_size_fit(random_planes, numbers, size):
    planes, x = random_planes("Q4_K", 8, 256, seed=7), numbers(2, 256)
    x[1] *= size
    (found,) = multiply([planes], x, SmallTile(2))
    assert error(found[:1], planes, x[:1]) <= BOUND
    if size:
        assert error(found[1:], planes, x[1:]) <= BOUND
    else:
        assert torch.equal(found[1], torch.zeros(8))


def test_one_column_selects_a_column_of_the_matrix(random_planes):
    planes = random_planes("Q8_0", 36, 256, seed=3)
    x = torch.zeros(8, 256)
    columns = [0, 5, 18, 37, 63, 64, 130, 255]
    x[range(8), columns] = 1.0
    (found,) = multiply([planes], x, SmallTile(1))
    assert torch.allclose(found, unpack(planes)[:, columns].T, rtol=2e-3)


def test_several_matrices_in_one_launch_give_the_bits_of_each_alone(random_planes, numbers):
    x = numbers(9, 256)
    shapes = {"Q8_0": 6, "Q5_K": 36, "Q6_K": 17}
    matrices = [random_planes(name, rows, 256, seed=rows) for name, rows in shapes.items()]
    tile = SmallTile(2, 2)
    together = multiply(matrices, x, tile)
    for planes, out in zip(matrices, together, strict=True):
        (alone,) = multiply([planes], x, tile)
        assert torch.equal(out, alone)


def test_a_row_does_not_depend_on_the_rows_beside_it(random_planes, numbers):
    planes, x = random_planes("Q4_K", 32, 512, seed=4), numbers(12, 512)
    (together,), (alone,) = (multiply([planes], rows, SmallTile(4)) for rows in (x, x[9:10]))
    assert torch.equal(together[9:10], alone)


def test_tiles_depend_on_shapes_alone(random_planes):
    one, other = random_planes("Q4_K", 8, 512, seed=0), random_planes("Q6_K", 8, 512, seed=1)
    assert tile_for([one]) == tile_for([other])

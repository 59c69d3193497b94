"""The float16 matrix product against float64 over the same rows and the matrix's exact numbers."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from kinfolk_kernels.linear.gemm_f16 import F16Tile, gemm_f16, tile_for
from kinfolk_kernels.linear.prepare import f16_rows
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# A scale, a minimum, a weight and x are each rounded to float16: 2^-11 apiece.
BOUND = 1e-3


class Shape(NamedTuple):
    rows: int
    columns: int


def multiply(matrices, x, tile):
    outs = [torch.full((x.shape[0], planes.rows), torch.nan) for planes in matrices]
    launch = gemm_f16(matrices, f16_rows(x), outs, tile, asm=False)
    launch.run()
    assert not launch.arguments["done_ptr"].any()
    return outs


def error(found, planes, x):
    expected = x.double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "tile"),
    [
        (17, 70, 512, F16Tile(4, 4, 1)),
        (32, 33, 768, F16Tile(2, 6, 1)),
        (33, 40, 512, F16Tile(3, 4, 1)),
        (64, 200, 1024, F16Tile(7, 8)),
    ],
)
def test_products_equal_float64(random_planes, numbers, name, batch, rows, columns, tile):
    planes, x = random_planes(name, rows, columns, seed=batch), numbers(batch, columns)
    assert error(*multiply([planes], x, tile), planes, x) <= BOUND


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0"])
@pytest.mark.parametrize(("columns", "tile"), [(64, None), (704, F16Tile(4, 8, 1)), (832, None)])
def test_rows_that_end_in_half_a_pair(random_planes, numbers, name, columns, tile):
    planes, x = random_planes(name, 45, columns, seed=7), numbers(18, columns)
    assert error(*multiply([planes], x, tile), planes, x) <= BOUND


@pytest.mark.parametrize("size", [1e-7, 3e5, 0.0])
def test_rows_of_any_size_fit(random_planes, numbers, size):
    planes, x = random_planes("Q4_K", 8, 256, seed=7), numbers(2, 256)
    x[1] *= size
    (found,) = multiply([planes], x, F16Tile(2, 2, 1))
    assert error(found[:1], planes, x[:1]) <= BOUND
    if size:
        assert error(found[1:], planes, x[1:]) <= BOUND
    else:
        assert torch.equal(found[1], torch.zeros(8))


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_one_column_selects_a_column_of_the_matrix(random_planes, name):
    planes = random_planes(name, 36, 256, seed=3)
    x = torch.zeros(18, 256)
    columns = [*range(0, 256, 17), 1, 255]
    x[range(18), columns] = 1.0
    (found,) = multiply([planes], x, F16Tile(2, 2, 1))
    scale = unpack(planes).abs().amax()
    assert float((found - unpack(planes)[:, columns].T).abs().amax() / scale) <= BOUND


def test_several_matrices_in_one_launch_give_the_bits_of_each_alone(random_planes, numbers):
    x = numbers(19, 256)
    shapes = (("Q5_K", 70), ("Q5_K", 36), ("Q6_K", 40), ("Q8_0", 6))
    matrices = [random_planes(name, rows, 256, seed=rows) for name, rows in shapes]
    tile = F16Tile(1, 2, 1)
    together = multiply(matrices, x, tile)
    for planes, out in zip(matrices, together, strict=True):
        (alone,) = multiply([planes], x, tile)
        assert torch.equal(out, alone)


@pytest.mark.parametrize(("first", "more"), [(17, 32), (33, 64)])
def test_a_row_does_not_depend_on_the_rows_beside_it(random_planes, numbers, first, more):
    planes, x = random_planes("Q4_K", 40, 512, seed=4), numbers(more, 512)
    tile = tile_for([planes], more)
    assert tile == tile_for([planes], first)
    (together,), (alone,) = (multiply([planes], rows, tile) for rows in (x, x[:first]))
    assert torch.equal(together[:first], alone)


def test_parts_of_a_tile_fill_one_wave_of_programs():
    def programs(tile, rows):
        tiles = -(-rows // 128)
        return -(-tiles * tile.span // tile.share)

    for columns, rows in ((5120, 34816), (17408, 5120), (6144, 5120), (5120, 248320), (704, 48)):
        tile = tile_for([Shape(rows, columns)], 24)
        assert programs(tile, rows) <= 396
        assert tile.span >= -(-columns // 128)


def test_tiles_depend_on_shapes_alone(random_planes):
    one, other = random_planes("Q4_K", 8, 512, seed=0), random_planes("Q6_K", 8, 512, seed=1)
    assert tile_for([one], 24) == tile_for([other], 24)

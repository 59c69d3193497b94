"""Int8 rows on the matrix unit against float64 over the same quantised numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kinfolk_kernels.int8_rows import dequantize, quantize
from kinfolk_kernels.linear.gemm_int8 import (
    LEAST_PAIRS,
    MAX_DEVICE_WARPS,
    Int8Tile,
    gemm_int8,
    tile_for,
)
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# Whole numbers until a scale comes in; what minima are multiplied with has sixteen bits.
BOUND = 1e-5


def multiply(matrices, x, tile):
    outs = [torch.full((x.shape[0], planes.rows), torch.nan) for planes in matrices]
    launch = gemm_int8(matrices, quantize(x), outs, tile, asm=False)
    launch.run()
    assert not launch.arguments["done_ptr"].any()
    return outs


def error(found, planes, x):
    expected = dequantize(quantize(x)).double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize(
    ("name", "batch", "rows", "columns", "tile"),
    [
        (name, *((9, 40, 512, Int8Tile(2, 4)) if index % 2 else (3, 13, 256, Int8Tile(2, 2))))
        for index, name in enumerate(LAYOUTS)
    ],
)
def test_products_equal_float64(random_planes, numbers, name, batch, rows, columns, tile):
    planes, x = random_planes(name, rows, columns, seed=batch), numbers(batch, columns)
    assert error(*multiply([planes], x, tile), planes, x) <= BOUND


def test_three_times_eight_rows(random_planes, numbers):
    planes, x = random_planes("Q4_K", 17, 256, seed=5), numbers(20, 256)
    assert error(*multiply([planes], x, None), planes, x) <= BOUND


@pytest.mark.parametrize(("name", "columns"), [("Q8_0", 64), ("Q4_0", 448), ("Q5_0", 704)])
def test_rows_that_are_no_multiple_of_a_block_of_256(random_planes, numbers, name, columns):
    planes, x = random_planes(name, 9, columns, seed=7), numbers(3, columns)
    assert error(*multiply([planes], x, None), planes, x) <= BOUND


@pytest.mark.parametrize("name", LAYOUTS)
def test_extreme_activations_do_not_overflow(random_planes, name):
    planes = random_planes(name, 8, 256, seed=1)
    x = torch.full((2, 256), 3e4)
    x[1] = -3e4
    assert error(*multiply([planes], x, None), planes, x) <= 20 * BOUND


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_one_column_selects_a_column_of_the_matrix(random_planes, name):
    planes = random_planes(name, 36, 256, seed=3)
    x = torch.zeros(8, 256)
    columns = [0, 5, 18, 37, 63, 64, 130, 255]
    x[range(8), columns] = 127.0
    (found,) = multiply([planes], x, None)
    assert torch.allclose(found, 127 * unpack(planes)[:, columns].T, rtol=1e-4, atol=1e-3)


def test_several_matrices_in_one_launch_give_the_bits_of_each_alone(random_planes, numbers):
    x = numbers(5, 256)
    shapes = {"Q8_0": 6, "Q5_K": 36, "Q4_K": 30}
    matrices = [random_planes(name, rows, 256, seed=rows) for name, rows in shapes.items()]
    together = multiply(matrices, x, Int8Tile(1, 2))
    for planes, out in zip(matrices, together, strict=True):
        (alone,) = multiply([planes], x, Int8Tile(1, 2))
        assert torch.equal(out, alone)


def test_a_row_does_not_depend_on_the_rows_beside_it(random_planes, numbers):
    planes, x = random_planes("Q4_K", 32, 256, seed=4), numbers(12, 256)
    (together,), (alone,) = (multiply([planes], rows, None) for rows in (x, x[9:11]))
    assert torch.equal(together[9:11], alone)


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [
        (70, 640, Int8Tile(2, 5)),
        (70, 640, Int8Tile(3, 6)),
        (130, 256, Int8Tile(3, 2)),
        (230, 256, Int8Tile(9, 2)),
    ],
    ids=["shares end inside tiles", "the last share is shorter", "a tile and a half", "many tiles"],
)
def test_pairs_are_shared_out(random_planes, numbers, rows, columns, tile):
    planes = [random_planes(name, n, columns, seed=n) for name, n in (("Q8_0", rows), ("Q4_0", 9))]
    x = numbers(9, columns)
    for one, found in zip(planes, multiply(planes, x, tile), strict=True):
        assert error(found, one, x) <= BOUND


@pytest.mark.parametrize("rows", [48, 4096, 5120, 16480, 34816, 248320])
@pytest.mark.parametrize("columns", [704, 5120, 17408])
def test_a_large_device_runs_all_warps_at_a_time(rows, columns):
    tile = tile_for([SimpleNamespace(rows=rows, columns=columns)])
    tiles, pairs = -(-rows // 32), -(-columns // 128)
    programs = -(-tiles * tile.span // tile.share)
    assert programs <= MAX_DEVICE_WARPS
    assert tile.span >= pairs
    assert tile.share <= LEAST_PAIRS or programs >= 0.75 * MAX_DEVICE_WARPS


def test_tiles_depend_on_shapes_alone(random_planes):
    one, other = random_planes("Q4_K", 8, 512, seed=0), random_planes("Q6_K", 8, 512, seed=1)
    assert tile_for([one]) == tile_for([other])

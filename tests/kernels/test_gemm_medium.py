"""The matrix product of 65 to 512 rows against float64 over the same rows and exact numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.linear.gemm_medium import (
    COLUMN_PARTS,
    Division,
    MediumTile,
    division_for,
    gemm_medium,
)
from kinfolk_kernels.linear.prepare import operand_rows
from kinfolk_kernels.planes import LAYOUTS, unpack

pytestmark = pytest.mark.interpreter

# A scale, a minimum and a weight are each rounded to float16, and so is x: 2^-11 apiece.
BOUND = 1e-3

TILE, NARROW = MediumTile(64, 32, 2), MediumTile(64, 32, 4)
"""Each lane has four rows of the matrix, or two."""


def multiply(matrices, x, tile=TILE, division=None):
    outs = [torch.full((x.shape[0], planes.rows), torch.nan) for planes in matrices]
    operand = operand_rows(x, tile.batch)
    for launch in gemm_medium(matrices, operand, outs, tile, division, asm=False):
        launch.run()
    return outs


def error(found, planes, x):
    expected = x.double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "division"), [(TILE, Division(1, 2)), (NARROW, Division(0, 3)), (NARROW, Division(2))]
)
def test_products_equal_float64(random_planes, numbers, name, tile, division):
    planes, x = random_planes(name, 70, 256, seed=1), numbers(40, 256)
    assert error(*multiply([planes], x, tile, division), planes, x) <= BOUND


@pytest.mark.parametrize("batch", [65, 128, 129, 512])
def test_any_number_of_rows_in_the_default_tile(random_planes, numbers, batch):
    planes, x = random_planes("Q4_K", 300, 256, seed=batch), numbers(batch, 256)
    assert error(*multiply([planes], x, MediumTile()), planes, x) <= BOUND


def test_rows_that_are_no_multiple_of_a_block_of_256(random_planes, numbers):
    planes, x = random_planes("Q5_0", 9, 704, seed=7), numbers(3, 704)
    assert error(*multiply([planes], x, division=Division(0, 4)), planes, x) <= BOUND


@pytest.mark.parametrize("size", [1e-7, 3e5, 0.0])
def test_rows_of_any_size_fit(random_planes, numbers, size):
    planes, x = random_planes("Q4_K", 8, 256, seed=7), numbers(2, 256)
    x[1] *= size
    (found,) = multiply([planes], x)
    assert error(found[:1], planes, x[:1]) <= BOUND
    if size:
        assert error(found[1:], planes, x[1:]) <= BOUND
    else:
        assert torch.equal(found[1], torch.zeros(8))


@pytest.mark.parametrize("tile", [TILE, NARROW])
def test_one_column_selects_a_column_of_the_matrix(random_planes, tile):
    planes = random_planes("Q8_0", 68, 256, seed=3)
    x = torch.zeros(16, 256)
    columns = [0, 2, 5, 7, 8, 15, 16, 18, 37, 62, 63, 64, 130, 191, 254, 255]
    x[range(16), columns] = 1.0
    (found,) = multiply([planes], x, tile)
    assert torch.allclose(found, unpack(planes)[:, columns].T, rtol=2e-3)


@pytest.mark.parametrize("whole", [5, 2])
def test_several_matrices_in_one_launch_give_the_bits_of_each_alone(random_planes, numbers, whole):
    x = numbers(3, 256)
    shapes = [("Q5_K", 68), ("Q8_0", 6), ("Q5_K", 65), ("Q6_K", 17)]
    matrices = [random_planes(name, rows, 256, seed=rows) for name, rows in shapes]
    together = multiply(matrices, x, division=Division(whole, 2))
    # The largest matrices come first in a launch.
    for planes, out, first in zip(matrices, together, (0, 5, 2, 4), strict=True):
        tiles = -(-planes.rows // TILE.rows)
        division = Division(min(tiles, max(0, whole - first)), 2)
        (alone,) = multiply([planes], x, division=division)
        assert torch.equal(out, alone)
        assert error(out, planes, x) <= BOUND


def test_a_row_does_not_depend_on_the_rows_beside_it(random_planes, numbers):
    planes, x = random_planes("Q4_K", 70, 256, seed=4), numbers(70, 256)
    division = Division(1, 2)
    (together,) = multiply([planes], x, division=division)
    for first in (9, 64):
        (alone,) = multiply([planes], x[first : first + 3], division=division)
        assert torch.equal(together[first : first + 3], alone)


def test_columns_are_split_where_tiles_leave_programs_idle():
    assert division_for(132, 1, 80, 132) == Division(132)
    assert division_for(1, 1, 3, 132) == Division(1)
    assert division_for(136, 1, 80, 132).whole == 132
    for tiles, x_tiles, steps in ((136, 1, 80), (20, 1, 272), (66, 3, 80), (136, 4, 80)):
        found = division_for(tiles, x_tiles, steps, 132)
        assert found.parts in COLUMN_PARTS
        assert (found.whole * x_tiles) % 132 == 0
        assert 0 < (tiles - found.whole) * x_tiles * found.parts <= 2 * 132

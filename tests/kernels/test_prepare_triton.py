"""Rows in the forms that matrix products read."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.int8_rows import quantize
from kinfolk_kernels.linear.prepare import HalfRows, half_rows, int8_rows

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("width", [64, 704, 2048])
def test_int8_rows_are_those_of_the_definition(numbers, width):
    x = numbers(3, width + 8)[:, :width]
    found, expected = int8_rows(x), quantize(x)
    torch.testing.assert_close(found.scales, expected.scales, rtol=1e-6, atol=0)
    found_q, expected_q = (rows.words.view(torch.int8).int() for rows in (found, expected))
    assert int((found_q - expected_q).abs().max()) <= 1
    assert float((found_q != expected_q).float().mean()) < 0.01


def numbers_of(rows: HalfRows) -> torch.Tensor:
    """[8 T, K] from the matrix unit's order: group, tile, half, row, c, run, pair, number."""
    parts = rows.words.unflatten(3, (8, 4)).unflatten(5, (2, 2)).contiguous().view(torch.float16)
    parts = parts.unflatten(6, (2, 2))
    values = parts.permute(1, 3, 0, 2, 5, 4, 6, 7).float().flatten(2).flatten(0, 1)
    return values * rows.factor[:, None]


@pytest.mark.parametrize(("rows", "tiles"), [(1, 1), (8, 1), (9, 2), (33, 8)])
def test_halves_hold_every_number_in_its_place(numbers, rows, tiles):
    x = numbers(rows, 136)[:, :128]
    made = half_rows(x)
    assert made.tiles == tiles
    found = numbers_of(made)
    torch.testing.assert_close(found[:rows], x, rtol=5e-4, atol=1e-6)
    assert not found[rows:].any()


def test_huge_and_tiny_rows_keep_their_bits():
    x = torch.tensor([[1e30], [1e-30], [3.0]]).expand(3, 64) * torch.linspace(0.5, 1.0, 64)
    torch.testing.assert_close(numbers_of(half_rows(x))[:3], x, rtol=5e-4, atol=0)

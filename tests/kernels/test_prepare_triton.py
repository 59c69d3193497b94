"""Rows in the forms that matrix products read."""

from __future__ import annotations

import pytest
import torch
from int8_sums import assert_sums_are_those_of_the_rows
from mma_rows_read import numbers_of

from kinfolk_kernels.int8_rows import quantize
from kinfolk_kernels.linear.prepare import F16_TILE, int8_rows, mma_rows

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(("rows", "width"), [(3, 64), (1, 704), (16, 704), (17, 128), (3, 2048)])
def test_int8_rows_are_those_of_the_definition(numbers, rows, width):
    x = numbers(rows, width + 8)[:, :width]
    found, expected = int8_rows(x), quantize(x)
    torch.testing.assert_close(found.scales, expected.scales, rtol=1e-6, atol=0)
    found_q, expected_q = (rows.words.view(torch.int8).int() for rows in (found, expected))
    assert int((found_q - expected_q).abs().max()) <= 1
    assert float((found_q != expected_q).float().mean()) < 0.01
    assert_sums_are_those_of_the_rows(found)


PLACES = [
    (rows, tiles, width)
    for rows, tiles in ((1, 1), (9, 2), (33, 8), (97, 16), (130, 12))
    for width in (128, 192, 1088)
]
WIDE = F16_TILE + 64
"""A row of two tiles, of a program each or of one."""


@pytest.mark.parametrize(("rows", "tiles", "width"), [*PLACES, (2, 1, WIDE), (97, 16, WIDE)])
def test_mma_rows_hold_every_number_in_its_place(numbers, rows, tiles, width):
    x = numbers(rows, width + 8)[:, :width]
    made = mma_rows(x)
    assert made.tiles == tiles
    found = numbers_of(made, width)[:rows] * made.factor[:, None]
    torch.testing.assert_close(found, x, rtol=5e-4, atol=1e-6)


def test_huge_and_tiny_rows_keep_their_bits():
    x = torch.tensor([[1e30], [1e-30], [3.0]]).expand(3, 64) * torch.linspace(0.5, 1.0, 64)
    made = mma_rows(x)
    found = numbers_of(made, 64)[:3] * made.factor[:, None]
    torch.testing.assert_close(found, x, rtol=5e-4, atol=0)

"""Rows for ``gemm_mma`` read back into their columns."""

from __future__ import annotations

import torch

from kinfolk_kernels.mma_rows import MmaRows


def numbers_of(rows: MmaRows, width: int) -> torch.Tensor:
    """[rows, K] from the order of the tensor core's operand, without the rows' factors."""
    shape = (*rows.numbers.shape[:-1], *((2, 2, 8, 4, 2) if rows.warpgroups else (8, 4, 2, 2, 2)))
    places = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    part, pair, word, tile = places[:4]
    h, p, row, c, e = places[4:] if rows.warpgroups else [places[4 + i] for i in (2, 3, 0, 1, 4)]
    byte = p + 2 * e
    column = 128 * pair + 64 * (c // 2) + 32 * h + 4 * (2 * word + c % 2) + byte
    # The words of a last group without a partner are those of all four lanes.
    alone = 128 * pair + 32 * h + 4 * (4 * word + c) + byte
    column = torch.where(2 * pair + 1 < width // 64, column, torch.where(word < 2, alone, width))
    found = torch.zeros(shape[0] * 8 * rows.tiles, width + 1)
    found[8 * (part * rows.tiles + tile) + row, column] = rows.numbers.cpu().float().reshape(shape)
    return found[:, :width]


def restored(rows: MmaRows) -> torch.Tensor:
    """float32 [R, K], K a multiple of 128, on the CPU."""
    width = 128 * rows.numbers.shape[1]
    factor = rows.factor.cpu()
    return numbers_of(rows, width)[: len(factor)] * factor[:, None]


def assert_rounded_once(
    rows: MmaRows,
    expected: torch.Tensor,
    error: float = 0.0,
    most: torch.Tensor | None = None,
) -> None:
    """Rows are ``expected`` [R, K], up to the relative ``error`` of what was rounded: to eleven
    bits, or as few as float16 has so far below ``most`` [R], a bound of a row's numbers, by default
    the largest. Over a row's factor it is 2^13 or more and below 2^14."""
    expected, factor = expected.cpu().double(), rows.factor.cpu().double()
    largest = expected.abs().amax(1)
    most = largest if most is None else most.cpu().double()
    assert bool((largest <= most).all())
    bound = (2**-11 + error) * expected.abs() + (2**-25 * factor + error * largest)[:, None]
    assert bool(((restored(rows).double() - expected).abs() <= bound).all())
    top = most / factor
    assert bool(((top > 0.999 * 2**13) & (top < 1.001 * 2**14) | (top == 0)).all())

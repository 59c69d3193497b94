"""In which form kernels store rows that products will read: int8 or the order of ``gemm_mma``.

The forms are those of ``int8_rows``, which is read without Triton too, and ``mma_rows``.
"""

from __future__ import annotations

import torch

from kinfolk_kernels.cuda_source import unavailable
from kinfolk_kernels.int8_rows import GROUP_NUMBERS, MAX_INT8_ROWS, MAX_SUMS_ROWS
from kinfolk_kernels.mma_rows import MAX_MMA_ROWS, PAIR_NUMBERS

NARROW_WIDTH = 4096
"""More than ``MAX_INT8_ROWS`` rows of up to so many numbers are float16: steps of a 35B, whose rows
have 2048 and 4096, are slower with int8 (``benchmarks/NOTES.md``)."""

MANY_ROWS = 64
WIDTH_OF_MANY = 4096
"""More than ``MANY_ROWS`` rows that are narrower are read mostly by matrices that are dequantised,
see ``LEAST_WEIGHTS`` of ``linear``."""


def most_int8_rows(width: int, device: torch.device) -> int:
    """Most rows of ``width`` numbers that products may read as int8."""
    return MAX_INT8_ROWS if width <= NARROW_WIDTH or unavailable(device) else MAX_SUMS_ROWS


def worth_int8(x: torch.Tensor) -> bool:
    """Whether a kernel that computes ``x`` should also store it as int8 rows."""
    if x.dim() != 2 or x.shape[1] % GROUP_NUMBERS:
        return False
    return x.shape[0] <= most_int8_rows(x.shape[1], x.device)


def worth_mma(x: torch.Tensor) -> bool:
    """Whether a kernel that computes ``x`` should also store it as rows for ``gemm_mma``: matrices
    that read as many rows of ``x`` are likely to be multiplied by it. Never where ``worth_int8``
    holds."""
    if x.dim() != 2:
        return False
    rows, width = x.shape
    if not most_int8_rows(width, x.device) < rows <= MAX_MMA_ROWS:
        return False
    if width % PAIR_NUMBERS or (rows > MANY_ROWS and width < WIDTH_OF_MANY):
        return False
    return not unavailable(x.device)

"""Which rows products read as int8."""

from __future__ import annotations

import torch

from kinfolk_kernels.cuda_source import unavailable
from kinfolk_kernels.int8_rows import GROUP_NUMBERS, MAX_INT8_ROWS, MAX_SUMS_ROWS

NARROW_WIDTH = 4096
"""More than ``MAX_INT8_ROWS`` rows of up to so many numbers are float16: steps of a 35B, whose rows
have 2048 and 4096, are slower with int8 (``benchmarks/NOTES.md``)."""


def most_int8_rows(width: int, device: torch.device) -> int:
    """Most rows of ``width`` numbers that products may read as int8."""
    return MAX_INT8_ROWS if width <= NARROW_WIDTH or unavailable(device) else MAX_SUMS_ROWS


def worth_int8(x: torch.Tensor) -> bool:
    """Whether a kernel that computes ``x`` should also store it as int8 rows."""
    if x.dim() != 2 or x.shape[1] % GROUP_NUMBERS:
        return False
    return x.shape[0] <= most_int8_rows(x.shape[1], x.device)

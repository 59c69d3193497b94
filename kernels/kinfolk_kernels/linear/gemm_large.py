"""A matrix times many rows: a slice of it becomes numbers, then the vendor's product."""

from __future__ import annotations

import torch

from kinfolk_kernels.linear.dequantize import dequantize
from kinfolk_kernels.planes import Planes

SLICE = 12 << 20
"""Weights of a slice: as numbers of two bytes they stay in the cache of a large device."""

FEW_ROWS, LARGE_SLICE = 512, 48 << 20
"""Up to so many rows the launches take longer than what leaves the cache and comes back."""


def gemm_large(
    planes: Planes, x: torch.Tensor, out: torch.Tensor, *, slice: int = 0, asm: bool = True
) -> None:
    """out [M, N] = x W^T in the type of ``x``; out may be wider than N. ``slice`` weights at a
    time, if not as many as suit the rows."""
    columns = planes.columns
    slice = slice or (LARGE_SLICE if x.shape[0] <= FEW_ROWS else SLICE)
    step = max(64, slice // columns // 64 * 64)
    scratch = torch.empty(min(step, planes.rows), columns, dtype=x.dtype, device=x.device)
    for start in range(0, planes.rows, step):
        stop = min(start + step, planes.rows)
        part = scratch[: stop - start]
        dequantize(planes, start, part, asm=asm).run()
        torch.mm(x, part.T, out=out[:, start:stop])

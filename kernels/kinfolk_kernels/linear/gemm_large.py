"""Matrices times many rows: slices of the matrices are dequantised and multiplied by cuBLAS.

The host must launch a prompt as fast as the device multiplies it. So matrices that read the same
rows are stacked: a slice may hold several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kinfolk_kernels.linear.dequantize import dequantize
from kinfolk_kernels.planes import INTERLEAVE, Planes

SLICE = 48 << 20
"""Weights of a slice. Smaller slices would stay in the cache of a large device, but that saves less
than their launches cost."""

SLICE_ROWS_MULTIPLE = 64
"""Slices have a multiple of this many rows, except the last."""


def gemm_large(
    matrices: Sequence[Planes], x: torch.Tensor, *, slice: int = SLICE, asm: bool = True
) -> list[torch.Tensor]:
    """x [M, K] -> x W_i^T [M, N_i] for up to four matrices, in the dtype of ``x``, as columns of
    one tensor; ``slice`` weights are dequantised at a time."""
    columns, total = matrices[0].columns, sum(planes.rows for planes in matrices)
    result = torch.empty(x.shape[0], total, dtype=x.dtype, device=x.device)
    count = -(-total * columns // slice)
    most = -(-total // count // SLICE_ROWS_MULTIPLE) * SLICE_ROWS_MULTIPLE
    scratch = torch.empty(min(most, total), columns, dtype=x.dtype, device=x.device)
    start = 0
    for parts in _slices(matrices, most):
        sizes = [planes.rows for planes in parts]
        stop = start + sum(sizes)
        # A view costs the host as much as a launch, so a whole tensor is not sliced.
        numbers = scratch if stop - start == scratch.shape[0] else scratch[: stop - start]
        each = [numbers] if len(parts) == 1 else numbers.split(sizes)
        dequantize(parts, each, asm=asm).run()
        torch.mm(x, numbers.T, out=result if stop - start == total else result[:, start:stop])
        start = stop
    if len(matrices) == 1:
        return [result]
    return list(result.split([planes.rows for planes in matrices], 1))


def _slices(matrices: Sequence[Planes], most: int) -> Iterator[list[Planes]]:
    """The stacked matrices, up to ``most`` rows at a time."""
    parts: list[Planes] = []
    room = most
    for planes in matrices:
        start = 0
        while start < planes.rows:
            stop = min(planes.rows, start + room)
            if stop < planes.rows:
                stop -= (stop - start) % INTERLEAVE
            if start < stop:
                parts.append(planes[start:stop] if stop - start < planes.rows else planes)
            room -= stop - start
            start = stop
            if start < planes.rows:
                yield parts
                parts, room = [], most
    yield parts

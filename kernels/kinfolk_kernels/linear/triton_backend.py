"""y = x W^T for matrices in planes, on the GPU.

How a product is computed depends on the number of rows alone: up to 16 meet the matrix as int8,
unless it asks for float16, one by itself and more on the matrix unit; up to 64 do as float16 on the
matrix unit; for more, slices of the matrix become numbers. Sums are made in an order that shapes
decide. Matrices that read the same rows are done in one launch. A matrix of plain numbers is left
to the vendor's product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, made_int8
from kinfolk_kernels.linear import gemm_small as small
from kinfolk_kernels.linear import torch_backend as vendor
from kinfolk_kernels.linear.gemm_int8 import gemm_int8
from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.linear.gemv import gemv
from kinfolk_kernels.linear.gemv_kernel import gemv_kernel
from kinfolk_kernels.linear.prepare import half_rows, int8_rows
from kinfolk_kernels.linear.reference import Packed
from kinfolk_kernels.linear.segments import MOST
from kinfolk_kernels.planes import Planes
from kinfolk_kernels.verdict import YES, Verdict, no

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTERPRETED = not isinstance(gemv_kernel, triton.JITFunction)


def supports(x: torch.Tensor, weight: torch.Tensor | Packed) -> Verdict:
    """Whether ``linear`` can do this call."""
    return supports_all(x, (weight,))


def supports_all(x: torch.Tensor, weights: Sequence[torch.Tensor | Packed]) -> Verdict:
    """Whether ``linears`` can do this call."""
    if not (x.is_cuda or INTERPRETED):
        return no(f"it runs on CUDA devices, the rows are on {x.device.type}")
    if INTERPRETED and x.dtype == torch.bfloat16:
        return no("Triton's interpreter computes wrong numbers from bfloat16")
    if x.dtype not in FLOATS or x.dim() != 2:
        return no(f"rows of {x.dtype} in {x.dim()} dimensions")
    for weight in weights:
        if not isinstance(weight, Planes | torch.Tensor):
            return no("the matrix is neither in planes nor plain numbers")
        if weight.device != x.device:
            return no(f"the matrix is on {weight.device}, the rows on {x.device}")
    return YES


def linear(x: torch.Tensor, weight: torch.Tensor | Packed) -> torch.Tensor:
    """See the reference."""
    return linears(x, (weight,))[0]


def linears(x: torch.Tensor, weights: Sequence[torch.Tensor | Packed]) -> tuple[torch.Tensor, ...]:
    """See the reference."""
    packed = [weight for weight in weights if isinstance(weight, Planes)]
    done = dict(zip(map(id, packed), _products(x, packed), strict=True))
    return tuple(
        done[id(weight)] if isinstance(weight, Planes) else vendor.linear(x, weight)
        for weight in weights
    )


def _products(x: torch.Tensor, matrices: Sequence[Planes]) -> list[torch.Tensor]:
    rows = x.shape[0]
    if x.stride(1) != 1:
        x = x.contiguous()
    if rows > small.MAX_ROWS:
        groups = [matrices[first : first + MOST] for first in range(0, len(matrices), MOST)]
        return [y for group in groups for y in gemm_large(group, x, asm=not INTERPRETED)]
    outs = [torch.empty(rows, m.rows, dtype=x.dtype, device=x.device) for m in matrices]
    if not rows or not matrices:
        return outs
    pairs = list(zip(matrices, outs, strict=True))
    as_int8 = [pair for pair in pairs if _takes_int8(pair[0], rows)]
    as_half = [pair for pair in pairs if not _takes_int8(pair[0], rows)]
    if as_int8:
        words = made_int8(x) or int8_rows(x)
        product = gemv if rows == 1 else gemm_int8
        for part, results in _launches(as_int8):
            product(part, words, results, asm=not INTERPRETED).run()
    if as_half:
        halves = half_rows(x)
        for part, results in _launches(as_half):
            small.gemm_small(part, halves, results, asm=not INTERPRETED).run()
    return outs


def _takes_int8(planes: Planes, rows: int) -> bool:
    return rows <= MAX_INT8_ROWS and planes.activations == "int8"


def _launches(
    pairs: Sequence[tuple[Planes, torch.Tensor]],
) -> list[tuple[list[Planes], list[torch.Tensor]]]:
    """Matrices and results, as many to a launch as it takes."""
    parts = [pairs[start : start + MOST] for start in range(0, len(pairs), MOST)]
    return [([planes for planes, _ in part], [out for _, out in part]) for part in parts]

"""``linear`` for packed matrices, on the GPU.

The number of rows selects the kernel. Up to 16 rows, on sm_90 up to 32 wide ones, are rounded to
int8, unless the matrix asks for float16: one or two are multiplied by dot products, more on tensor
cores, in Triton or in CUDA C++. Up to 64 rows, on sm_90 and of large matrices up to 512, are
multiplied as float16 on tensor cores, on sm_90 by a kernel in CUDA C++. For more rows, slices of
the matrix are dequantised and multiplied by cuBLAS.
The order of sums depends on shapes only.
Matrices that read the same rows share launches. Dense matrices are multiplied by cuBLAS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton

from kinfolk_kernels.cuda_source import CudaLaunch, unavailable
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, Int8Rows, made_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_f16 import MAX_F16_ROWS, gemm_f16
from kinfolk_kernels.linear.gemm_int8 import gemm_int8
from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.linear.gemm_mma import gemm_mma
from kinfolk_kernels.linear.gemm_mma_int8 import gemm_mma_int8
from kinfolk_kernels.linear.gemv import gemv
from kinfolk_kernels.linear.gemv_kernel import gemv_kernel
from kinfolk_kernels.linear.op import LinearArguments, Matrix
from kinfolk_kernels.linear.prepare import f16_rows, int8_rows, mma_rows
from kinfolk_kernels.linear.segments import MAX_MATRICES, by_size
from kinfolk_kernels.linear.torch_backend import product as vendor_product
from kinfolk_kernels.mma_rows import MAX_MMA_ROWS, MAX_PART_ROWS, made_mma
from kinfolk_kernels.planes import Planes
from kinfolk_kernels.row_forms import most_int8_rows
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

LEAST_WEIGHTS = (6 << 20, 24 << 20, 28 << 20, 28 << 20)
"""Weights that a launch of ``gemm_mma`` must have, by the parts of more than 64 rows. With fewer it
is faster to dequantise them: a program has little to multiply between its begin and the exchange of
sums. Measured with 1 to 178 M weights (``benchmarks/NOTES.md``)."""

MAX_DOT_ROWS = 2
"""Most int8 rows that are multiplied by dot products, of up to four that ``gemv`` can multiply: its
instructions grow with their number, those of tensor cores do not (``benchmarks/NOTES.md``)."""

ROWS_BY_COPIES: Mapping[str, range] = dict.fromkeys(("Q4_K", "Q5_K", "Q6_K"), range(3, 17))
"""The numbers of up to ``MAX_INT8_ROWS`` rows for which ``gemm_mma_int8`` replaces ``gemm_int8`` on
sm_90, by the format of a launch's largest matrix (``benchmarks/kernels/linear.py``)."""

INTERPRETED = not isinstance(gemv_kernel, triton.JITFunction)


def supports(arguments: LinearArguments) -> Verdict:
    reason = refuses_device(gemv_kernel, arguments.device, arguments.dtype)
    if reason:
        return no(reason)
    if arguments.dtype not in FLOATS:
        return no(f"rows of {arguments.dtype}")
    for weight in arguments.weights:
        if not isinstance(weight, Planes | torch.Tensor):
            return no("the matrix is neither packed nor dense")
        if weight.device != arguments.device:
            return no(f"the matrix is on {weight.device}, the model on {arguments.device}")
    return YES


def linear(arguments: LinearArguments, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """See :class:`LinearArguments`."""
    return products(x, arguments.weights)


def products(x: torch.Tensor, weights: Sequence[Matrix]) -> tuple[torch.Tensor, ...]:
    """x [R, in], weights [out, in] each, packed or dense -> [R, out] in the dtype of ``x`` each."""
    packed = [weight for weight in weights if isinstance(weight, Planes)]
    results = iter(_packed_products(x, packed))
    return tuple(
        next(results) if isinstance(weight, Planes) else vendor_product(x, weight)
        for weight in weights
    )


def _packed_products(x: torch.Tensor, matrices: Sequence[Planes]) -> list[torch.Tensor]:
    rows = x.shape[0]
    if x.stride(1) != 1:
        x = x.contiguous()
    if _dequantised(matrices, rows, x.device):
        groups = [
            matrices[first : first + MAX_MATRICES]
            for first in range(0, len(matrices), MAX_MATRICES)
        ]
        return [y for group in groups for y in gemm_large(group, x, asm=not INTERPRETED)]
    outs = [torch.empty(rows, m.rows, dtype=x.dtype, device=x.device) for m in matrices]
    if not rows or not matrices:
        return outs
    pairs = list(zip(matrices, outs, strict=True))
    few = rows <= most_int8_rows(x.shape[1], x.device)
    as_int8 = [pair for pair in pairs if few and pair[0].activations == "int8"]
    as_half = [pair for pair in pairs if not few or pair[0].activations != "int8"]
    if as_int8:
        words = made_int8(x) or int8_rows(x)
        for part, results in _launches(as_int8):
            _int8_product(part, words, results).run()
    if as_half:
        _half_products(as_half, x)
    return outs


def _int8_product(
    matrices: Sequence[Planes], x: Int8Rows, outs: Sequence[torch.Tensor]
) -> Launch | CudaLaunch:
    rows, largest = outs[0].shape[0], matrices[by_size(matrices)[0]]
    if rows <= MAX_DOT_ROWS:
        return gemv(matrices, x, outs, asm=not INTERPRETED)
    if rows > MAX_INT8_ROWS:
        return gemm_mma_int8(matrices, x, outs)
    if rows in ROWS_BY_COPIES.get(largest.format, ()) and not unavailable(outs[0].device):
        return gemm_mma_int8(matrices, x, outs)
    return gemm_int8(matrices, x, outs, asm=not INTERPRETED)


def _dequantised(matrices: Sequence[Planes], rows: int, device: torch.device) -> bool:
    """Whether matrices become numbers in memory before they are multiplied."""
    if unavailable(device):
        return rows > MAX_F16_ROWS
    if not MAX_F16_ROWS < rows <= MAX_MMA_ROWS:
        return rows > MAX_MMA_ROWS
    weights = sum(planes.rows * planes.columns for planes in matrices)
    return weights < LEAST_WEIGHTS[(rows - 1) // MAX_PART_ROWS]


def _half_products(pairs: Sequence[tuple[Planes, torch.Tensor]], x: torch.Tensor) -> None:
    if unavailable(x.device):
        f16 = f16_rows(x)
        for part, results in _launches(pairs):
            gemm_f16(part, f16, results, asm=not INTERPRETED).run()
        return
    operand = made_mma(x) or mma_rows(x)
    for part, results in _launches(pairs):
        gemm_mma(part, operand, results).run()


def _launches(
    pairs: Sequence[tuple[Planes, torch.Tensor]],
) -> list[tuple[list[Planes], list[torch.Tensor]]]:
    """Matrices and results of each launch, up to the most that a launch can have."""
    parts = [pairs[start : start + MAX_MATRICES] for start in range(0, len(pairs), MAX_MATRICES)]
    return [([planes for planes, _ in part], [out for _, out in part]) for part in parts]

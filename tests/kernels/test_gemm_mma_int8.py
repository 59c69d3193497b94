"""Few int8 rows by warps that copy their own weights: emulated against float64, and compiled.

On a GPU its numbers are compared in ``tests/gpu/test_linear_triton.py``.
"""

from __future__ import annotations

import pytest
import torch
from cuda_on_cpu import COMPILER, run_on_cpu

from kinfolk_kernels.cuda_source import MAX_SHARED
from kinfolk_kernels.int8_rows import Int8Rows, dequantize, quantize
from kinfolk_kernels.linear.gemm_mma import MmaTile
from kinfolk_kernels.linear.gemm_mma_int8 import gemm_mma_int8, tile_for
from kinfolk_kernels.linear.segments import counters
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import LAYOUTS, unpack

META = torch.device("meta")
CPU = torch.device("cpu")
ALL_REGISTERS = 65536

# Whole numbers until a scale comes in; what minima are multiplied with has sixteen bits.
BOUND = 1e-5

emulated = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


def multiply(matrices, x, tile, seed=1):
    outs = [torch.full((x.shape[0], planes.rows), torch.nan) for planes in matrices]
    run_on_cpu(gemm_mma_int8(matrices, quantize(x), outs, tile), seed)
    assert not counters(CPU, 1).any()
    return outs


def error(found, planes, x):
    expected = dequantize(quantize(x)).double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@emulated
@pytest.mark.parametrize("name", LAYOUTS)
def test_products_equal_float64(random_planes, numbers, name):
    rows, columns = (44, 768) if LAYOUTS[name].block == 256 else (44, 704)
    planes, x = random_planes(name, rows, columns, seed=3), numbers(11, columns)
    # Shares of one unit and of two: tiles of several parts, and a share that ends inside a tile.
    for tile in (MmaTile(2, 3, 1, 2), MmaTile(1, 3, 2, 1)):
        assert error(*multiply([planes], x, tile), planes, x) <= BOUND

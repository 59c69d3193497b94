"""The product on the GPU; see the reference."""

from __future__ import annotations

import torch

from kinfolk_kernels.activations import GELU
from kinfolk_kernels.gated_product import multiply, multiply_rows
from kinfolk_kernels.gated_product import supports as supports
from kinfolk_kernels.row_outputs import RowOutputs


def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See the reference."""
    return multiply(GELU.value, gate, up)


def gelu_mul_rows(
    gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype | None, *, int8: bool
) -> RowOutputs:
    """The product as rows in ``dtype``, in int8, or both."""
    return multiply_rows(GELU.value, gate, up, dtype, int8=int8)

"""Rows of the token table."""

from __future__ import annotations

from typing import Protocol

import torch


class PackedRows(Protocol):
    """A matrix in quantised blocks whose rows can be taken out."""

    def select(self, rows: torch.Tensor) -> PackedRows: ...
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


def embedding(
    tokens: torch.Tensor, weight: torch.Tensor | PackedRows, scale: float = 1.0
) -> torch.Tensor:
    """tokens int64 [R], weight [V, width] -> float32 [R, width] times ``scale``."""
    if isinstance(weight, torch.Tensor):
        rows = weight[tokens].float()
    else:
        rows = weight.select(tokens).dequantize(torch.float32)
    return rows if scale == 1.0 else rows * scale

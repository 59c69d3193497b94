"""The reference of ``embedding``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.embedding.op import EmbeddingArguments


class PackedRows(Protocol):
    """A matrix in quantised blocks whose rows can be selected."""

    @property
    def device(self) -> torch.device: ...
    def select(self, rows: torch.Tensor) -> PackedRows: ...
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


def embedding(arguments: EmbeddingArguments, tokens: torch.Tensor) -> torch.Tensor:
    """See :class:`EmbeddingArguments`."""
    table, scale = arguments.table, arguments.scale
    if isinstance(table, torch.Tensor):
        rows = table[tokens].float()
    else:
        rows = table.select(tokens).dequantize(torch.float32)
    return rows if scale == 1.0 else rows * scale

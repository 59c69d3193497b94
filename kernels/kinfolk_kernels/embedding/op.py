"""The op ``embedding``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class EmbeddingArguments:
    """Rows of a token table, times ``scale``.

    ``table`` [V, width], dense or quantised. Operand: tokens int64 [R] below V, on the table's
    device. Result: float32 [R, width].
    """

    table: torch.Tensor | PackedRows
    scale: float = 1.0


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


EMBEDDING = Op("embedding", EmbeddingArguments, embedding, capturable=True)

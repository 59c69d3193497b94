"""The op ``embedding``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.embedding.reference import PackedRows, embedding
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class EmbeddingArguments:
    """Rows of a token table, times ``scale``.

    ``table`` [V, width], dense or quantised. Operand: tokens int64 [R] below V, on the table's
    device. Result: float32 [R, width].
    """

    table: torch.Tensor | PackedRows
    scale: float = 1.0


EMBEDDING = Op("embedding", EmbeddingArguments, embedding, capturable=True)

"""The op ``gated_attention``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import Stored
from kinfolk_kernels.op import Op
from kinfolk_kernels.paged_attention.reference import gated_attention
from kinfolk_kernels.stored_kind import StoredKind


@dataclass(frozen=True, slots=True)
class GatedAttentionArguments:
    """Softmax attention over block tables, and the gates that follow it.

    ``heads`` query heads share the key heads evenly: query head h reads key head
    h // (heads / key heads). ``keys`` and ``values`` describe the storage of the sections.
    ``scale`` multiplies scores. A row sees the keys of its sequence with ``pos <= limit[row]``, the
    arena rows in ``ancestors[row]``, and of both only those with ``pos > positions[row] - window``.

    Operands: q [R, heads, D] in ``dtype``; pools and arenas, keys and values [blocks, Hkv, 64, D];
    the rows of the step; the block table of their pool; an :class:`Epilogue`. If keys are stored
    rotated, q must be rotated too; values that are stored rotated are rotated back. Result: a
    :class:`Mixed`, values [R, heads, Dv] in the epilogue's dtype, rounded once.
    """

    heads: int
    keys: StoredKind
    values: StoredKind
    window: int | None
    scale: float
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(
        cls, q: torch.Tensor, pools: tuple[Stored, Stored], window: int | None, scale: float
    ) -> GatedAttentionArguments:
        """The arguments that match these operands."""
        keys, values = (StoredKind.of(pool) for pool in pools)
        return cls(q.shape[1], keys, values, window, scale, q.dtype, q.device)


GATED_ATTENTION = Op("gated_attention", GatedAttentionArguments, gated_attention)

"""The op ``qk_rope_write``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.reference import qk_rope_write
from kinfolk_kernels.stored_kind import StoredKind


@dataclass(frozen=True, slots=True)
class QKRopeWriteArguments:
    """Normalises heads, applies the rotary embedding, and stores keys and values.

    ``norms`` are those of q, k and v. ``rope_tables`` are cosines and sines float32 [context, n],
    see ``rope``. ``keys`` and ``values`` describe how pool ``pool_index`` stores the sections.
    Without ``has_values`` the values are the keys before norm and rotation.

    Operands: q [R, Hq, D], k [R, Hkv, D] and v [R, Hkv, Dv], which may be views into wider
    projections (k = ``None``: nothing is stored); pools and arenas, keys and values
    [blocks, Hkv, 64, D]; the rows of the step. Result: q [R, Hq, D], normed, with rotary embedding,
    in ``dtype``. The computation is in float32; if the codec of keys rotates them, q is too.
    """

    norms: tuple[HeadNorm | None, HeadNorm | None, HeadNorm | None]
    rope_tables: tuple[torch.Tensor, torch.Tensor] | None
    keys: StoredKind
    values: StoredKind
    has_values: bool
    pool_index: int
    dtype: torch.dtype
    device: torch.device


QK_ROPE_WRITE = Op("qk_rope_write", QKRopeWriteArguments, qk_rope_write)

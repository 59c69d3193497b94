"""The op ``qk_rope_write``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import Coded, Stored, encode, is_rotated, rotate
from kinfolk_kernels.op import Op
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.kv_write import kv_write
from kinfolk_kernels.qk_rope_write.rope import rope
from kinfolk_kernels.rms_norm.op import normed
from kinfolk_kernels.rows import Rows
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


def qk_rope_write(
    arguments: QKRopeWriteArguments,
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
) -> torch.Tensor:
    """See :class:`QKRopeWriteArguments`."""
    norms, tables, pool_index = arguments.norms, arguments.rope_tables, arguments.pool_index
    query = _prepare(q, norms[0], tables, rows)
    if k is not None:
        _store(pools[0], arenas[0], _prepare(k, norms[1], tables, rows), rows, pool_index)
        values = _prepare(k if v is None else v, norms[2], None, rows)
        _store(pools[1], arenas[1], values, rows, pool_index)
    return (rotate(query) if is_rotated(pools[0]) else query).to(arguments.dtype)


def _prepare(
    x: torch.Tensor,
    norm: HeadNorm | None,
    rope_tables: tuple[torch.Tensor, torch.Tensor] | None,
    rows: Rows,
) -> torch.Tensor:
    x = x.float() if norm is None else normed(x, norm.weight, norm.eps, torch.float32)
    return x if rope_tables is None else rope(x, rows.positions, *rope_tables)


def _store(pool: Stored, arena: Stored, x: torch.Tensor, rows: Rows, pool_index: int) -> None:
    if isinstance(pool, Coded) and isinstance(arena, Coded):
        codes, scales = encode(pool.format, rotate(x) if pool.rotated else x)
        kv_write(pool.codes, arena.codes, codes, rows, pool_index)
        kv_write(pool.scales, arena.scales, scales, rows, pool_index)
    elif isinstance(pool, torch.Tensor) and isinstance(arena, torch.Tensor):
        kv_write(pool, arena, x, rows, pool_index)
    else:
        raise TypeError("pool and arena are stored in different formats")


QK_ROPE_WRITE = Op("qk_rope_write", QKRopeWriteArguments, qk_rope_write)

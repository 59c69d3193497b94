"""The reference of ``qk_rope_write``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kinfolk_kernels.codecs import Coded, Stored, encode, is_rotated, rotate
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.kv_write import kv_write
from kinfolk_kernels.qk_rope_write.rope import rope
from kinfolk_kernels.rms_norm.reference import normed
from kinfolk_kernels.rows import Rows

if TYPE_CHECKING:
    from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments


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

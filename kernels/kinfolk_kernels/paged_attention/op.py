"""The op ``gated_attention``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import Stored, is_rotated, numbers, rotate
from kinfolk_kernels.op import Op
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed, finish
from kinfolk_kernels.rows import CHUNK_POSITIONS, Rows, Table
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


def paged_attention(
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """q [R, Hq, D] -> [R, Hq, Dv] in the dtype of ``q``; query head h reads key head h // (Hq/Hkv).

    ``pools`` and ``arenas`` are keys and values [blocks, Hkv, 64, D]. If keys are stored rotated,
    q must be rotated too; values that are stored rotated are rotated back. A row sees the keys
    of its sequence with ``pos <= limit[row]``, the arena rows in ``ancestors[row]``, and of both
    only those with ``pos > positions[row] - window``.
    """
    k_pool, v_pool = (numbers(pool) for pool in pools)
    k_arena, v_arena = (numbers(arena) for arena in arenas)
    out = torch.zeros(q.shape[0], q.shape[1], v_pool.shape[-1], dtype=q.dtype, device=q.device)
    for segment in rows.layout.segments:
        n = table.lengths[segment.sequence]
        blocks = table.blocks[segment.sequence, :n].long()
        chunks = table.chunks[segment.sequence, :n].long()
        for row in range(segment.start, segment.stop):
            keys, values = [], []
            newest, limit = int(rows.positions[row]), int(rows.limit[row])
            oldest = -1 if window is None else newest - window
            for block, chunk in zip(blocks.tolist(), chunks.tolist(), strict=True):
                for offset in range(CHUNK_POSITIONS):
                    if oldest < chunk * CHUNK_POSITIONS + offset <= limit:
                        keys.append(k_pool[block, :, offset])
                        values.append(v_pool[block, :, offset])
            for j in range(segment.start, segment.stop):
                seen = int(rows.ancestors[row]) >> (j - segment.start) & 1
                if seen and int(rows.positions[j]) > oldest:
                    place = int(rows.arena_row[j])
                    keys.append(k_arena[place // CHUNK_POSITIONS, :, place % CHUNK_POSITIONS])
                    values.append(v_arena[place // CHUNK_POSITIONS, :, place % CHUNK_POSITIONS])
            out[row] = _attend(q[row], torch.stack(keys), torch.stack(values), scale)
    return rotate(out).to(q.dtype) if is_rotated(pools[1]) else out


def gated_attention(
    arguments: GatedAttentionArguments,
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    epilogue: Epilogue,
) -> Mixed:
    """See :class:`GatedAttentionArguments`."""
    window, scale = arguments.window, arguments.scale
    mixed = paged_attention(q.float(), pools, arenas, rows, table, window, scale)
    return finish(mixed, epilogue, q.dtype)


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [Hq, D], keys [n, Hkv, D], values [n, Hkv, Dv] -> [Hq, Dv]."""
    group = q.shape[0] // keys.shape[1]
    k = keys.float().repeat_interleave(group, dim=1)
    v = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,nhd->hn", q.float(), k) * scale
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v).to(q.dtype)


GATED_ATTENTION = Op("gated_attention", GatedAttentionArguments, gated_attention)

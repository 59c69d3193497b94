"""``gated_attention`` by torch's fused attention, one sequence at a time."""

from __future__ import annotations

import torch

from kinfolk_kernels.codecs import Stored, dim_of, is_rotated, numbers, rotate
from kinfolk_kernels.paged_attention.epilogue import Epilogue, Mixed, finish
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments
from kinfolk_kernels.row_layout import Segment
from kinfolk_kernels.rows import CHUNK_POSITIONS, Rows, Table


def paged_attention(
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    arenas: tuple[Stored, Stored],
    rows: Rows,
    table: Table,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """See the reference. A sequence's blocks are gathered in logical order and masked by position,
    so neither their places nor other sequences change a bit of the result."""
    out = torch.empty(q.shape[0], q.shape[1], dim_of(pools[1]), dtype=q.dtype, device=q.device)
    inside = torch.arange(CHUNK_POSITIONS, device=q.device)
    for segment in rows.layout.segments:
        n = table.lengths[segment.sequence]
        span = slice(segment.start, segment.stop)
        blocks = table.blocks[segment.sequence, :n].long()
        chunks = table.chunks[segment.sequence, :n].long()
        places = (chunks[:, None] * CHUNK_POSITIONS + inside).flatten()
        visible = places <= rows.limit[span, None]
        keys, values = (_gather(pool, blocks) for pool in pools)
        if segment.drafted:
            seen = _arena_mask(rows, segment)
            if seen is not None:
                places = torch.cat([places, rows.positions[span]])
                visible = torch.cat([visible, seen], 1)
                keys = torch.cat([keys, _arena_rows(arenas[0], rows, segment)], 1)
                values = torch.cat([values, _arena_rows(arenas[1], rows, segment)], 1)
        if window is not None:
            visible &= places > rows.positions[span, None] - window
        # Places that no row sees may hold NaN, which survives a mask: NaN - inf and 0 * NaN.
        unseen = ~visible.any(0)[:, None]
        out[span] = torch.nn.functional.scaled_dot_product_attention(
            q[span].transpose(0, 1)[None],
            keys.masked_fill(unseen, 0)[None].to(q.dtype),
            values.masked_fill(unseen, 0)[None].to(q.dtype),
            attn_mask=visible,
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
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
    """See :class:`GatedAttentionArguments`. The result of attention is rounded to the dtype of the
    query before the epilogue."""
    window, scale = arguments.window, arguments.scale
    mixed = paged_attention(q, pools, arenas, rows, table, window, scale)
    return finish(mixed, epilogue, q.dtype)


def _gather(pool: Stored, blocks: torch.Tensor) -> torch.Tensor:
    """[blocks, H, 64, D] -> [H, n * 64, D]."""
    return numbers(pool, lambda plane: plane[blocks]).transpose(0, 1).flatten(1, 2)


def _arena_rows(arena: Stored, rows: Rows, segment: Segment) -> torch.Tensor:
    place = rows.arena_row[segment.start : segment.stop]
    return numbers(
        arena, lambda plane: plane[place // CHUNK_POSITIONS, :, place % CHUNK_POSITIONS]
    ).transpose(0, 1)


def _arena_mask(rows: Rows, segment: Segment) -> torch.Tensor | None:
    """bool [rows, rows] of the segment: whether row i sees row j in the arena; ``None`` for a
    chain."""
    span = slice(segment.start, segment.stop)
    if int(rows.arena_row[segment.start]) < 0:
        return None
    bits = torch.arange(segment.stop - segment.start, device=rows.ancestors.device)
    return (rows.ancestors[span, None] >> bits & 1).bool()

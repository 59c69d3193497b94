"""``place_drafts`` on the GPU, in one launch."""

from __future__ import annotations

import torch

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.place_drafts.kernel import place_drafts_kernel
from kinfolk_kernels.place_drafts.op import DraftedRows, PlaceDraftsArguments, StoredDrafts
from kinfolk_kernels.row_layout import MAX_DRAFT_ROWS
from kinfolk_kernels.verdict import YES, Verdict, no


def supports(arguments: PlaceDraftsArguments) -> Verdict:
    reason = refuses_device(place_drafts_kernel, arguments.device)
    return no(reason) if reason else YES


def place_drafts(
    arguments: PlaceDraftsArguments,
    stored: StoredDrafts,
    spans: torch.Tensor,
    context: torch.Tensor,
    arena_start: torch.Tensor,
    rows: DraftedRows,
) -> None:
    """See :class:`PlaceDraftsArguments`."""
    place(arguments, stored, spans, context, arena_start, rows).run()


def place(
    arguments: PlaceDraftsArguments,
    stored: StoredDrafts,
    spans: torch.Tensor,
    context: torch.Tensor,
    arena_start: torch.Tensor,
    rows: DraftedRows,
) -> Launch:
    """The launch that fills ``rows``."""
    return Launch(
        place_drafts_kernel,
        (spans.shape[0],),
        {
            "pending_ptr": stored.pending,
            "stored_tokens_ptr": stored.tokens,
            "stored_parents_ptr": stored.parents,
            "counts_ptr": stored.counts,
            "spans_ptr": spans,
            "context_ptr": context,
            "arena_start_ptr": arena_start,
            "tokens_ptr": rows.tokens,
            "positions_ptr": rows.positions,
            "parent_row_ptr": rows.parent_row,
            "limit_ptr": rows.limit,
            "ancestors_ptr": rows.ancestors,
            "arena_row_ptr": rows.arena_row,
            "path_ptr": rows.path,
            "vocabulary": arguments.vocabulary,
        },
        {
            "NODES": stored.tokens.shape[1],
            "PLACES": MAX_DRAFT_ROWS,
            "ROUNDS": (MAX_DRAFT_ROWS - 1).bit_length(),
        },
        warps=1,
    )

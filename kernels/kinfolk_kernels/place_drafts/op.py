"""The op ``place_drafts``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from kinfolk_kernels.accept_drafts.op import NO_ROW
from kinfolk_kernels.op import Op
from kinfolk_kernels.row_layout import MAX_DRAFT_ROWS


@dataclass(frozen=True, slots=True)
class StoredDrafts:
    """What every slot drafts from: int64, one row of each tensor for a slot.

    pending   [slots]      the token that was emitted and has not been computed: row 0
    tokens    [slots, N]   drafts: token i is that of row i + 1
    parents   [slots, N]   their parents, rows of the slot, as the op ``draft_trees`` gives them
    counts    [slots]      how many drafts there are

    Raises :class:`ValueError` if N drafts and the pending token are more than a path has bits.
    """

    pending: torch.Tensor
    tokens: torch.Tensor
    parents: torch.Tensor
    counts: torch.Tensor

    def __post_init__(self) -> None:
        drafts = self.tokens.shape[1]
        if drafts >= MAX_DRAFT_ROWS:
            raise ValueError(
                f"{drafts} drafts of a slot: at most {MAX_DRAFT_ROWS - 1} are possible, since a "
                f"path has {MAX_DRAFT_ROWS} bits and the pending token takes one"
            )


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """The tables of a step that drafts decide, each int64 [R], as in a step batch and, ``path``, in
    its row layout."""

    tokens: torch.Tensor
    positions: torch.Tensor
    parent_row: torch.Tensor
    limit: torch.Tensor
    ancestors: torch.Tensor
    arena_row: torch.Tensor
    path: torch.Tensor


@dataclass(frozen=True, slots=True)
class PlaceDraftsArguments:
    """Fills the rows of a step's drafted sequences from what their slots have stored.

    Operands, for B sequences, contiguous: a :class:`StoredDrafts`; ``spans`` int32 [B, 4] of the
    row layout; ``context`` int64 [B], committed positions; ``arena_start`` int64 [B], arena row of
    the first row, -1 = the sequence is a chain, and its rows are written to the pools; the
    :class:`DraftedRows` to change. Rows of other sequences, of those with a ``KNOWN_DRAFT`` and of
    padding stay as they are.

    A sequence gets the rows that ``spans`` says, whatever is stored: if that is fewer, the first
    ones, which are a tree too. A row is spare if nothing is stored for it, if its parent does not
    precede it (in a chain: is not the row before it), or if ``vocabulary`` tokens do not include
    its own. Spare rows have token 0, follow the context, see no other row of a tree, and have no
    parent, so neither they nor their children can be accepted.

    These are tables of the step: run it before the first product with a matrix.
    """

    vocabulary: int
    device: torch.device


def place_drafts(
    arguments: PlaceDraftsArguments,
    stored: StoredDrafts,
    spans: torch.Tensor,
    context: torch.Tensor,
    arena_start: torch.Tensor,
    rows: DraftedRows,
) -> None:
    """See :class:`PlaceDraftsArguments`."""
    first, count, slot, drafted = (part[:, None] for part in spans.long().unbind(1))
    place = torch.arange(MAX_DRAFT_ROWS, device=spans.device)
    tree = arena_start[:, None] >= 0
    tokens, above = _stored_rows(arguments, stored, slot[:, 0], tree)
    depth, path = (above >= 0).long(), torch.ones_like(place) << place.expand_as(above)
    up = above
    # Doubling: after n rounds a path holds 2^n ancestors and ``up`` is the next one.
    for _ in range((MAX_DRAFT_ROWS - 1).bit_length()):
        at = up.clamp_min(0)
        depth = depth + torch.where(up >= 0, depth.gather(1, at), 0)
        path = path | torch.where(up >= 0, path.gather(1, at), 0)
        up = torch.where(up >= 0, up.gather(1, at), -1)
    positions = context[:, None] + torch.where(tree, depth, place)
    found = DraftedRows(
        tokens=tokens,
        positions=positions,
        parent_row=torch.where(above >= 0, first + above, -1),
        limit=torch.where(tree, context[:, None] - 1, positions),
        ancestors=torch.where(tree, path, 0),
        arena_row=torch.where(tree, arena_start[:, None] + place, -1),
        path=path,
    )
    # What is no row of a drafted sequence goes to an extra last place, which is dropped.
    inside = (drafted == 1) & (place < count)
    target = torch.where(inside, first + place, rows.tokens.shape[0]).flatten()
    for name in DraftedRows.__slots__:
        table: torch.Tensor = getattr(rows, name)
        values: torch.Tensor = getattr(found, name)
        table.copy_(pad(table, (0, 1)).scatter_(0, target, values.flatten())[:-1])


def _stored_rows(
    arguments: PlaceDraftsArguments, stored: StoredDrafts, slot: torch.Tensor, tree: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token, 0 for spare rows, and parent, -1 for those and the first: [B, ``MAX_DRAFT_ROWS``]."""
    place = torch.arange(MAX_DRAFT_ROWS, device=slot.device)
    room = (1, MAX_DRAFT_ROWS - 1 - stored.tokens.shape[1])
    tokens = pad(stored.tokens[slot], room)
    tokens[:, 0] = stored.pending[slot]
    parents = pad(stored.parents[slot], room, value=NO_ROW)
    known = (tokens >= 0) & (tokens < arguments.vocabulary)
    fits = (parents >= 0) & (parents < place) & (tree | (parents == place - 1))
    follows = known & fits & (place > 0) & (place <= stored.counts[slot, None])
    return torch.where(known & (follows | (place == 0)), tokens, 0), torch.where(
        follows, parents, -1
    )


PLACE_DRAFTS = Op("place_drafts", PlaceDraftsArguments, place_drafts, capturable=True)

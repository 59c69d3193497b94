"""From a plan's integers to a step's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kinfolk.errors import StateError
from kinfolk.model_api import BlockTable, CommitBatch, Segment, StepBatch
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.state import Pool, State
from kinfolk.types import CHUNK, DUMMY, NO_PARENT


@dataclass(slots=True)
class _Columns:
    """The flat rows while they are collected, as host lists."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    limit: list[int] = field(default_factory=list)
    ancestors: list[int] = field(default_factory=list)
    arena: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    store_rows: list[int] = field(default_factory=list)
    store_slots: list[int] = field(default_factory=list)
    arena_used: int = 0


@dataclass(frozen=True, slots=True)
class Lanes:
    """Drafted segments of a step, side by side: D segments of at most T rows.

    rows int64 [D, T] row of the step, -1 = none; slot int64 [D]; arena int64 [D, T] arena row or
    -1; targets int64 [pools, D, T] pool row of the d-th kept row of each segment.
    """

    rows: torch.Tensor
    slot: torch.Tensor
    arena: torch.Tensor
    targets: torch.Tensor

    def commit_batch(self, path: torch.Tensor, n_keep: torch.Tensor) -> CommitBatch:
        """``path`` [D, T] indices inside the segments, padded with -1 -> rows of the step."""
        rows = self.rows.gather(1, path.clamp_min(0))
        return CommitBatch(torch.where(path < 0, -1, rows), n_keep, self.slot)


def build_batch(items: Sequence[Item], state: State, *, all_logits: bool = False) -> StepBatch:
    """Lay out the rows of ``items``; the state's tables must already be those of the step."""
    columns = _Columns()
    for number, item in enumerate(items):
        _append(columns, number, item, all_logits=all_logits)
    if columns.arena_used > state.limits.tree_rows:
        raise StateError(
            f"the trees of a step have {columns.arena_used} rows, the arena holds "
            f"{state.limits.tree_rows}"
        )
    device = state.device
    slots = [segment.slot for segment in columns.segments]
    spans = [(s.slot, range(s.start, s.stop)) for s in columns.segments]
    write = [
        [
            pool.place(slot, columns.positions[row])
            if columns.arena[row] < 0
            else DUMMY * CHUNK + row % CHUNK
            for slot, rows in spans
            for row in rows
        ]
        for pool in state.pools
    ]

    def tensor(values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return StepBatch(
        tokens=tensor(columns.tokens),
        positions=tensor(columns.positions),
        sequence_of_row=tensor(columns.sequence),
        parent_row=tensor(columns.parent),
        limit=tensor(columns.limit),
        ancestors=tensor(columns.ancestors),
        arena_row=tensor(columns.arena),
        arena_start=tensor([columns.arena[s.start] for s in columns.segments]),
        write_row=tensor(write).reshape(len(state.pools), len(columns.tokens)),
        slot_of_sequence=tensor(slots),
        context_len=tensor([s.context for s in columns.segments]),
        last_row=tensor([s.stop - 1 for s in columns.segments]),
        logit_rows=tensor(columns.logit_rows),
        store_rows=tensor(columns.store_rows),
        store_slots=tensor(columns.store_slots),
        tables=tuple(_table(pool, slots, device) for pool in state.pools),
        segments=tuple(columns.segments),
    )


def build_lanes(items: Sequence[Item], batch: StepBatch, state: State) -> Lanes | None:
    """The drafted segments of a step, or ``None``."""
    drafted = [s for s in batch.segments if s.drafted]
    if not drafted:
        return None
    width = max(segment.rows for segment in drafted)
    arena = batch.arena_row.tolist()

    def padded(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (width - len(values))

    rows = [padded(list(range(s.start, s.stop)), -1) for s in drafted]
    held = [padded(arena[s.start : s.stop], -1) for s in drafted]
    targets = [
        [padded(_targets(pool, s, items[s.sequence]), DUMMY) for s in drafted]
        for pool in state.pools
    ]
    device = state.device
    return Lanes(
        torch.tensor(rows, device=device),
        torch.tensor([s.slot for s in drafted], device=device),
        torch.tensor(held, device=device),
        torch.tensor(targets, dtype=torch.int64, device=device).reshape(
            len(state.pools), len(drafted), width
        ),
    )


def commit_tree_rows(state: State, lanes: Lanes, path: torch.Tensor) -> None:
    """Copy accepted arena rows to their final places; padding is copied onto the dummy block."""
    arena = lanes.arena.gather(1, path.clamp_min(0))
    moved = (path >= 0) & (arena >= 0)
    source = torch.where(moved, arena, 0).flatten()
    state.commit_tree(source, torch.where(moved, lanes.targets, DUMMY).flatten(1))


def _append(columns: _Columns, number: int, item: Item, *, all_logits: bool) -> None:
    start, count = len(columns.tokens), len(item.tokens)
    drafted = item.kind is ItemKind.VERIFY
    columns.segments.append(
        Segment(number, item.lease.slot, start, start + count, item.start, drafted)
    )
    columns.tokens += item.tokens
    columns.sequence += [number] * count
    if item.parents is None:
        columns.positions += range(item.start, item.start + count)
        columns.limit += range(item.start, item.start + count)
        columns.parent += [NO_PARENT, *range(start, start + count - 1)]
        columns.ancestors += [0] * count
        columns.arena += [-1] * count
    else:
        _append_tree(columns, start, item, item.parents)
    if all_logits or drafted:
        columns.logit_rows += range(start, start + count)
    elif item.sample:
        columns.logit_rows.append(start + count - 1)
    for offset, slot in item.stores:
        columns.store_rows.append(start + offset - 1)
        columns.store_slots.append(slot)


def _append_tree(columns: _Columns, start: int, item: Item, parents: tuple[int, ...]) -> None:
    depth: list[int] = []
    seen: list[int] = []
    for row, parent in enumerate(parents):
        depth.append(0 if parent < 0 else depth[parent] + 1)
        seen.append((0 if parent < 0 else seen[parent]) | 1 << row)
    columns.positions += [item.start + d for d in depth]
    columns.limit += [item.start - 1] * len(parents)
    columns.parent += [NO_PARENT if p < 0 else start + p for p in parents]
    # Bit 63 is the sign of an int64.
    columns.ancestors += [bits - (1 << 64) if bits >> 63 else bits for bits in seen]
    columns.arena += range(columns.arena_used, columns.arena_used + len(parents))
    columns.arena_used += len(parents)


def _targets(pool: Pool, segment: Segment, item: Item) -> list[int]:
    if item.parents is None:
        return [DUMMY] * segment.rows
    depths: list[int] = []
    for parent in item.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return [pool.place(segment.slot, segment.context + d) for d in range(max(depths) + 1)]


def _table(pool: Pool, slots: Sequence[int], device: torch.device) -> BlockTable:
    entries = [sorted(pool.tables[slot].items()) for slot in slots]
    width = max((len(rows) for rows in entries), default=0) or 1
    blocks = [[block for _, block in rows] + [DUMMY] * (width - len(rows)) for rows in entries]
    chunks = [[chunk for chunk, _ in rows] + [0] * (width - len(rows)) for rows in entries]
    lengths = tuple(len(rows) for rows in entries)

    def tensor(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return BlockTable(tensor(blocks), tensor(chunks), tensor(lengths), lengths)

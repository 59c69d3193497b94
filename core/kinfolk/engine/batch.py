"""From a plan's integers to a step's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kinfolk.engine.frame import CHANGES, BucketShape, InputBuffers, LaunchTraits, SampledSequences
from kinfolk.errors import StateError
from kinfolk.model_api import CommitBatch, Segment, StepBatch
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.state import Pool, State
from kinfolk.state.tables import Changes
from kinfolk.types import CHUNK, DUMMY, NO_PARENT
from kinfolk_kernels.paged_attention.work import MAX_SHORT_ROWS
from kinfolk_kernels.step_index import MOST_DRAFTED

CHAIN_PATHS = np.array([(1 << row + 1) - 1 for row in range(MOST_DRAFTED)], np.uint64).view(
    np.int64
)
"""Path of each row of a chain: all rows up to its own."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A step of its own size, on the device."""

    batch: StepBatch
    lanes: SampledSequences


def lay_out(items: Sequence[Item], state: State, *, all_logits: bool = False) -> LaidOut:
    """The step of ``items``; the state's tables must already be those of the step."""
    changes = state.block_tables.take_changes()
    frame = InputBuffers(state, _sizes(items, all_logits=all_logits, changes=len(changes.places)))
    frame.put_changes(changes)
    fill(frame, items, all_logits=all_logits)
    frame.transfer.upload()
    frame.enter_changes()
    traits = traits_of(items)
    return LaidOut(frame.batch(traits, full_width=False), frame.lanes(traits))


def build_batch(items: Sequence[Item], state: State, *, all_logits: bool = False) -> StepBatch:
    """The rows of ``items``, for those who need no lanes."""
    return lay_out(items, state, all_logits=all_logits).batch


def send_changes(state: State) -> Changes:
    """What has changed in tables since the last step; more than a bucket has room for is sent at
    once, and nothing is left."""
    changes = state.block_tables.take_changes()
    if len(changes.places) <= CHANGES:
        return changes
    frame = InputBuffers(state, BucketShape(0, 0, 0, 0, changes=len(changes.places)))
    frame.put_changes(changes)
    frame.transfer.upload()
    frame.enter_changes()
    return Changes(changes.places[:0], changes.values[:0])


def traits_of(items: Sequence[Item]) -> LaunchTraits:
    """What launches depend on."""
    counts = [len(item.tokens) for item in items]
    drafted = [n for item, n in zip(items, counts, strict=True) if _is_drafted(item)]
    single = any(n == 1 and not _is_drafted(i) for i, n in zip(items, counts, strict=True))
    return LaunchTraits(
        singles=single,
        draft_rows=max(drafted, default=0),
        trees=any(item.parents is not None for item in items),
        few_counts=tuple(sorted({n for n in counts if n <= MAX_SHORT_ROWS})),
        most_rows=max((n for n in counts if n > MAX_SHORT_ROWS), default=0),
    )


def _sizes(items: Sequence[Item], *, all_logits: bool, changes: int) -> BucketShape:
    counts = [len(item.tokens) for item in items]
    slices = [n for i, n in zip(items, counts, strict=True) if n > 1 and not _is_drafted(i)]
    logits = [_logits(item, all_logits) for item in items]
    return BucketShape(
        rows=sum(counts),
        sequences=len(items),
        lanes=sum(n > 0 for n in logits),
        logits=sum(logits),
        stores=sum(len(item.stores) for item in items),
        slices=len(slices),
        few=sum(n <= MAX_SHORT_ROWS for n in counts),
        many=sum(n > MAX_SHORT_ROWS for n in counts),
        changes=changes,
    )


def _is_drafted(item: Item) -> bool:
    return item.kind is ItemKind.VERIFY


def _logits(item: Item, all_logits: bool) -> int:
    """Rows of an item whose logits are wanted."""
    return len(item.tokens) if all_logits or _is_drafted(item) else int(item.sample)


# -- filling --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """How far the arrays of a frame are filled."""

    row: int = 0
    lane: int = 0
    logit: int = 0
    store: int = 0
    slice: int = 0
    arena: int = 0


def fill(frame: InputBuffers, items: Sequence[Item], *, all_logits: bool = False) -> None:
    """Write the rows of ``items`` into the host's side of a frame that is all padding."""
    state, at = frame.state, _Cursor()
    segments = []
    for number, item in enumerate(items):
        segment = Segment(
            number,
            item.lease.slot,
            at.row,
            at.row + len(item.tokens),
            item.start,
            _is_drafted(item),
        )
        segments.append(segment)
        _fill_rows(frame, item, segment, at)
        _fill_sequence(frame, item, segment, at)
        logits = _logits(item, all_logits)
        if logits:
            _fill_lane(frame, item, segment, at, logits)
        at.row = segment.stop
    if at.arena > state.limits.tree_rows:
        raise StateError(
            f"the trees of a step have {at.arena} rows, the arena holds {state.limits.tree_rows}"
        )
    counts = [segment.rows for segment in segments]
    if frame.sizes.many:
        frame.host["few"][:] = [i for i, n in enumerate(counts) if n <= MAX_SHORT_ROWS]
        frame.host["many"][:] = [i for i, n in enumerate(counts) if n > MAX_SHORT_ROWS]
    frame.segments = tuple(segments)
    frame.lengths = tuple(
        tuple(state.block_tables.length(pool, segment.slot) for segment in segments)
        for pool in range(len(state.pools))
    )
    for pool, lengths in enumerate(frame.lengths):
        frame.host["entries"][pool, : len(lengths)] = lengths


def _fill_rows(frame: InputBuffers, item: Item, segment: Segment, at: _Cursor) -> None:
    host, rows = frame.host, slice(segment.start, segment.stop)
    host["tokens"][rows] = item.tokens
    host["sequence"][rows] = segment.sequence
    if item.parents is not None:
        _fill_tree(frame, item, segment, at)
        return
    positions = np.arange(item.start, item.start + segment.rows)
    host["positions"][rows] = positions
    host["limit"][rows] = positions
    host["parent"][rows] = np.arange(segment.start - 1, segment.stop - 1)
    host["parent"][segment.start] = NO_PARENT
    if segment.drafted:
        host["path"][rows] = CHAIN_PATHS[: segment.rows]
    for index, pool in enumerate(frame.state.pools):
        _fill_places(host["write"][index, rows], pool, segment.slot, item.start)


def _fill_places(places: np.ndarray, pool: Pool, slot: int, start: int) -> None:
    """Where the positions from ``start`` on are stored, chunk by chunk."""
    done, stop = 0, places.shape[0]
    while done < stop:
        first = pool.place(slot, start + done)
        count = min(CHUNK - first % CHUNK, stop - done)
        places[done : done + count] = first if count == 1 else np.arange(first, first + count)
        done += count


def _fill_tree(frame: InputBuffers, item: Item, segment: Segment, at: _Cursor) -> None:
    assert item.parents is not None
    host, rows = frame.host, slice(segment.start, segment.stop)
    depth: list[int] = []
    seen: list[int] = []
    for row, parent in enumerate(item.parents):
        depth.append(0 if parent < 0 else depth[parent] + 1)
        seen.append((0 if parent < 0 else seen[parent]) | 1 << row)
    # Of rows beyond the 64th the arena will tell.
    bits = np.array([mask & (1 << 64) - 1 for mask in seen], np.uint64).view(np.int64)
    host["positions"][rows] = np.array(depth) + item.start
    host["limit"][rows] = item.start - 1
    host["parent"][rows] = [NO_PARENT if p < 0 else segment.start + p for p in item.parents]
    host["ancestors"][rows] = host["path"][rows] = bits
    host["arena"][rows] = np.arange(at.arena, at.arena + segment.rows)
    host["arena_start"][segment.sequence] = at.arena
    at.arena += segment.rows
    for index, pool in enumerate(frame.state.pools):
        host["write"][index, rows] = DUMMY * CHUNK + np.arange(rows.start, rows.stop) % CHUNK
        targets = host["targets"][index, rows]
        _fill_places(targets[: max(depth) + 1], pool, segment.slot, item.start)


def _fill_lane(frame: InputBuffers, item: Item, segment: Segment, at: _Cursor, logits: int) -> None:
    """The last ``logits`` rows of a sequence are to be sampled."""
    host, lane, first = frame.host, at.lane, segment.stop - logits
    host["logit_rows"][at.logit : at.logit + logits] = np.arange(first, segment.stop)
    host["logit"][lane] = at.logit
    host["lane_row"][lane] = first
    host["lane_count"][lane] = logits
    host["drafted"][lane] = segment.drafted
    host["lane_slot"][lane] = segment.slot
    host["budget"][lane] = item.budget
    at.lane += 1
    at.logit += logits


def _fill_sequence(frame: InputBuffers, item: Item, segment: Segment, at: _Cursor) -> None:
    host, number, count = frame.host, segment.sequence, segment.rows
    host["slot"][number] = segment.slot
    host["context"][number] = item.start
    host["last"][number] = segment.stop - 1
    host["spans"][number] = (segment.start, count, segment.slot, segment.drafted)
    host["first"][number] = segment.start
    host["count"][number] = count
    for offset, slot in item.stores:
        host["store_rows"][at.store] = segment.start + offset - 1
        host["store_slots"][at.store] = slot
        at.store += 1
    if frame.sizes.slices and count > 1 and not segment.drafted:
        host["slices"][at.slice] = (segment.start, count, segment.slot)
        at.slice += 1


def fill_single_rows(frame: InputBuffers, items: Sequence[Item]) -> None:
    """The same for a bucket of single rows, all at once."""
    host, tables, count = frame.host, frame.state.block_tables, len(items)
    starts, slots = [item.start for item in items], [item.lease.slot for item in items]
    order = frame.order[:count]
    host["tokens"][:count] = [item.tokens[0] for item in items]
    host["budget"][:count] = [item.budget for item in items]
    for name in ("positions", "limit", "context"):
        host[name][:count] = starts
    for name in ("slot", "lane_slot"):
        host[name][:count] = slots
    for name in ("logit", "lane_row", "last", "first"):
        host[name][:count] = order
    for name in ("lane_count", "count"):
        host[name][:count] = 1
    spans = host["spans"][:count]
    spans[:, 0], spans[:, 1], spans[:, 2] = order, 1, slots
    for index, pool in enumerate(frame.state.pools):
        places = [pool.place(slot, start) for slot, start in zip(slots, starts, strict=True)]
        host["write"][index, :count] = places
        host["entries"][index, :count] = [tables.length(index, slot) for slot in slots]
    if frame.state.device.type == "cpu":
        # The only back ends that look at these are some that no graph can hold.
        frame.segments = tuple(
            Segment(row, item.lease.slot, row, row + 1, item.start, False)
            for row, item in enumerate(items)
        )
        frame.lengths = tuple(
            tuple(tables.length(pool, slot) for slot in slots)
            for pool in range(len(frame.state.pools))
        )


# -- committing -----------------------------------------------------------------------------------


def commit_batch(lanes: SampledSequences, path: torch.Tensor, n_keep: torch.Tensor) -> CommitBatch:
    """``path`` [L, T] indices inside the lanes, padded with -1 -> rows of the step. Sequences
    that are not drafted keep nothing here: they have been advanced in place."""
    drafted = lanes.drafted != 0
    rows = torch.where((path < 0) | ~drafted[:, None], -1, lanes.row[:, None] + path)
    return CommitBatch(rows, torch.where(drafted, n_keep, 0), lanes.slot)


def commit_tree_rows(
    state: State, batch: StepBatch, lanes: SampledSequences, kept: CommitBatch
) -> None:
    """Copy accepted arena rows to their final places; padding is copied onto the dummy block."""
    arena = batch.arena_row[kept.path.clamp_min(0)]
    moved = (kept.path >= 0) & (arena >= 0)
    depth = torch.arange(kept.path.shape[1], device=arena.device)
    at = (lanes.row[:, None] + depth).clamp_max(batch.tokens.shape[0] - 1)
    targets = torch.where(moved, lanes.targets[:, at], DUMMY)
    state.commit_tree(torch.where(moved, arena, 0).flatten(), targets.flatten(1))

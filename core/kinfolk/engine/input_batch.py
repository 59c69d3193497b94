"""Builds the inputs of a step on the device from the items of a plan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kinfolk.engine.input_buffers import (
    BucketShape,
    InputBuffers,
    SampledSequences,
)
from kinfolk.errors import StateError
from kinfolk.model_api import StepBatch
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.state import Pool, State
from kinfolk.state.tables import NO_CHANGES, Changes
from kinfolk.types import CHUNK_POSITIONS, NO_PARENT
from kinfolk_kernels.row_layout import (
    KNOWN_DRAFT,
    MAX_DRAFT_ROWS,
    MAX_SHORT_ROWS,
    PREVIEWED,
    LaunchTraits,
    Segment,
)

Ints = Sequence[int] | npt.NDArray[np.int64]

CHAIN_PATHS = np.array([(1 << row + 1) - 1 for row in range(MAX_DRAFT_ROWS)], np.uint64).view(
    np.int64
)
"""Path of each row of a chain: all rows up to its own."""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """A step on the device: all of its rows, and its sampled sequences."""

    batch: StepBatch
    sampled: SampledSequences


def build_input_batch(
    items: Sequence[Item], state: State, *, all_logits: bool = False
) -> InputBatch:
    """The step of ``items`` without padding, in one upload; the state's tables must already be
    those of the step. ``all_logits``: compute the logits of every row, not of sampled ones only.

    Raises :class:`StateError` where a position has no block or trees do not fit the arena.
    """
    changes = state.block_tables.take_changes()
    shape = exact_shape(items, all_logits=all_logits, changes=len(changes.places))
    buffers = InputBuffers(state, shape)
    fill(buffers, items, all_logits=all_logits)
    buffers.put_changes(changes)
    buffers.upload()
    buffers.enter_changes()
    buffers.segments = segments_of(items)
    trees = any(item.is_tree for item in items)
    traits = LaunchTraits.of(buffers.segments, trees=trees)
    return InputBatch(buffers.batch(traits, full_width=False), buffers.sampled(traits))


def take_changes(state: State) -> Changes:
    """Changes of block tables since the last step, for the buffers of a bucket. If they are more
    than a bucket has room for, they are uploaded here and the result is empty."""
    changes = state.block_tables.take_changes()
    if len(changes.places) <= state.block_tables.usual_changes:
        return changes
    buffers = InputBuffers(state, BucketShape(0, 0, 0, 0, changes=len(changes.places)))
    buffers.put_changes(changes)
    buffers.upload()
    buffers.enter_changes()
    return NO_CHANGES


def exact_shape(items: Sequence[Item], *, all_logits: bool, changes: int) -> BucketShape:
    """The buffer sizes of one step, without padding."""
    counts = [item.rows for item in items]
    logits = [_logit_rows(item, all_logits) for item in items]
    long = [n for n in counts if n > MAX_SHORT_ROWS]
    return BucketShape(
        rows=sum(counts),
        sequences=len(items),
        sampled=sum(n > 0 for n in logits),
        logits=sum(logits),
        stores=sum(len(item.stores) for item in items),
        slices=sum(n > 1 and not i.is_drafted for i, n in zip(items, counts, strict=True)),
        short=len(items) - len(long),
        long=len(long),
        short_rows=sum(counts) - sum(long),
        changes=changes,
    )


# -- filling --------------------------------------------------------------------------------------


def fill(buffers: InputBuffers, items: Sequence[Item], *, all_logits: bool = False) -> None:
    """Write ``items`` into the host's arrays, where nothing but padding or an earlier step is.

    Numbers that follow from the layout are written if the step there has another layout; steps
    that decode or verify mostly have the layout of the step before."""
    starts = [item.start for item in items]
    trees = any(item.is_tree for item in items)
    layout = _layout_of(items, all_logits)
    if trees or buffers.layout != layout:
        buffers.clear()
        _fill_layout(buffers, items, all_logits)
        buffers.layout = None if trees else layout
    if buffers.single_rows:
        _fill_single_rows(buffers, items, starts)
    else:
        _fill_rows(buffers, items, starts)
    _fill_sequences(buffers, items, starts)
    budgets = [item.budget for item in items if _logit_rows(item, all_logits)]
    buffers.host["budget"][: len(budgets)] = budgets
    if buffers.state.device.type == "cpu":
        # Back ends for the CPU read segments, capturable ones read tensors.
        buffers.segments = segments_of(items)


def segments_of(items: Sequence[Item]) -> tuple[Segment, ...]:
    """The segments of a step."""
    stops = accumulate(item.rows for item in items)
    return tuple(
        Segment(
            *(number, item.lease.slot, stop - item.rows, stop, item.start),
            drafted=item.is_drafted,
            previewed=item.kind is ItemKind.PREVIEW,
        )
        for number, (item, stop) in enumerate(zip(items, stops, strict=True))
    )


def _layout_of(items: Sequence[Item], all_logits: bool) -> Hashable:
    """What decides all numbers of a step without trees but those that follow from the positions,
    the tokens and the budgets."""
    return (
        all_logits,
        *((i.lease.slot, i.kind, len(i.tokens), i.proposed, i.sample, i.stores) for i in items),
    )


# -- what follows from the layout -----------------------------------------------------------------


def _fill_layout(buffers: InputBuffers, items: Sequence[Item], all_logits: bool) -> None:
    host, total = buffers.host, sum(item.rows for item in items)
    # Real rows come first: whatever is behind them is padding.
    host["rows"][0] = total
    slots = [item.lease.slot for item in items]
    if buffers.single_rows:
        rows = buffers.order[: len(items)]
        _fill_spans(buffers, slots, rows, 1)
        _fill_sampled(buffers, slots, rows, 1, rows)
        return
    counts = [item.rows for item in items]
    stops = list(accumulate(counts))
    first = [stop - count for stop, count in zip(stops, counts, strict=True)]
    host["sequence"][:total] = np.repeat(np.arange(len(items)), counts)
    host["parent"][:total] = buffers.order[:total] - 1
    host["parent"][first] = NO_PARENT
    for item, begin, stop in zip(items, first, stops, strict=True):
        if item.is_drafted and not item.is_tree:
            host["path"][begin:stop] = CHAIN_PATHS[: item.rows]
    _fill_spans(buffers, slots, first, counts)
    _fill_lists(buffers, items, slots, first, counts)
    _fill_logits(buffers, items, slots, stops, all_logits)


def _fill_spans(buffers: InputBuffers, slots: list[int], first: Ints, counts: Ints | int) -> None:
    buffers.host["slot"][: len(slots)] = slots
    spans = buffers.host["spans"][: len(slots)]
    spans[:, 0], spans[:, 1], spans[:, 2] = first, counts, slots


def _fill_lists(
    buffers: InputBuffers,
    items: Sequence[Item],
    slots: list[int],
    first: list[int],
    counts: list[int],
) -> None:
    """Fill the lists of sequences: drafted ones, slices, checkpoints, short and long ones."""
    host, shape = buffers.host, buffers.shape
    drafted = [item.is_drafted for item in items]
    host["spans"][: len(items), 3] = [_span_kind(item) for item in items]
    slices = [
        (begin, count, slot)
        for begin, count, slot, is_draft in zip(first, counts, slots, drafted, strict=True)
        if count > 1 and not is_draft
    ]
    if slices:
        host["slices"][: len(slices)] = slices
    stores = [
        (begin + offset - 1, slot)
        for item, begin in zip(items, first, strict=True)
        for offset, slot in item.stores
    ]
    if stores:
        host["store_rows"][: len(stores)] = [row for row, _ in stores]
        host["store_slots"][: len(stores)] = [slot for _, slot in stores]
    if shape.long:
        short = [i for i, count in enumerate(counts) if count <= MAX_SHORT_ROWS]
        long = [i for i, count in enumerate(counts) if count > MAX_SHORT_ROWS]
        rows = [row for i in short for row in range(first[i], first[i] + counts[i])]
        host["short"][: len(short)], host["long"][: len(long)] = short, long
        host["short_rows"][: len(rows)] = rows


def _fill_logits(
    buffers: InputBuffers,
    items: Sequence[Item],
    slots: list[int],
    stops: list[int],
    all_logits: bool,
) -> None:
    """Fill the sampled sequences among ``items``, and their rows with logits."""
    host = buffers.host
    wanted = [_logit_rows(item, all_logits) for item in items]
    chosen = [number for number, rows in enumerate(wanted) if rows]
    sampled = [items[number] for number in chosen]
    counts = [wanted[number] for number in chosen]
    first = [stops[number] - wanted[number] for number in chosen]
    logit = [stop - count for stop, count in zip(accumulate(counts), counts, strict=True)]
    if sum(counts) < stops[-1]:  # else it is all rows, as in padding
        rows = [np.arange(begin, begin + n) for begin, n in zip(first, counts, strict=True)]
        host["logit_rows"][: sum(counts)] = np.concatenate(rows) if rows else ()
    host["drafted"][: len(chosen)] = [item.is_drafted for item in sampled]
    _fill_sampled(buffers, [slots[number] for number in chosen], first, counts, logit)


def _fill_sampled(
    buffers: InputBuffers, slots: list[int], first: Ints, counts: Ints | int, logit: Ints
) -> None:
    host, count = buffers.host, len(slots)
    host["logit"][:count] = logit
    host["sampled_row"][:count] = first
    host["sampled_count"][:count] = counts
    host["sampled_slot"][:count] = slots


# -- what follows from positions and tokens -------------------------------------------------------


def _fill_single_rows(buffers: InputBuffers, items: Sequence[Item], starts: list[int]) -> None:
    host, count = buffers.host, len(items)
    host["tokens"][:count] = [item.tokens[0] for item in items]
    host["positions"][:count] = host["limit"][:count] = starts
    for index, pool in enumerate(buffers.state.pools):
        host["write"][index, :count] = [pool.place(i.lease.slot, i.start) for i in items]


def _fill_rows(buffers: InputBuffers, items: Sequence[Item], starts: list[int]) -> None:
    host, counts = buffers.host, [item.rows for item in items]
    stops = list(accumulate(counts))
    total = stops[-1]
    if len(items) == 1:
        positions = buffers.order[:total] + starts[0]
    else:
        offsets = [
            start + count - stop for start, count, stop in zip(starts, counts, stops, strict=True)
        ]
        positions = buffers.order[:total] + np.repeat(offsets, counts)
    host["positions"][:total] = host["limit"][:total] = positions
    arena_rows = 0
    for number, (item, stop) in enumerate(zip(items, stops, strict=True)):
        rows = slice(stop - item.rows, stop)
        host["tokens"][rows.start : rows.start + len(item.tokens)] = item.tokens
        if item.is_tree:
            host["arena_start"][number] = arena_rows
            _fill_tree(buffers, item, rows, arena_rows)
            arena_rows += item.rows
            continue
        for index, pool in enumerate(buffers.state.pools):
            _fill_places(host["write"][index, rows], pool, item.lease.slot, item.start)
    room = buffers.state.limits.tree_rows
    if arena_rows > room:
        raise StateError(f"the trees of a step have {arena_rows} rows, the arena holds {room}")


def _fill_tree(buffers: InputBuffers, item: Item, rows: slice, arena_start: int) -> None:
    """Fill the fields in which a tree differs from a chain: its rows are written to the arena, see
    their ancestors there, and are copied to the pools when they are kept."""
    host = buffers.host
    # The device knows the parents of proposed rows; until then they are a chain.
    parents = item.parents or tuple(range(NO_PARENT, item.rows - 1))
    depth: list[int] = []
    seen: list[int] = []
    for row, parent in enumerate(parents):
        depth.append(0 if parent < 0 else depth[parent] + 1)
        seen.append((0 if parent < 0 else seen[parent]) | 1 << row)
    # Ancestors beyond the 64th row do not fit the bits; attention finds them in the arena.
    bits = np.array([mask & (1 << 64) - 1 for mask in seen], np.uint64).view(np.int64)
    host["positions"][rows] = np.array(depth) + item.start
    host["limit"][rows] = item.start - 1
    host["parent"][rows] = [NO_PARENT if p < 0 else rows.start + p for p in parents]
    host["ancestors"][rows] = host["path"][rows] = bits
    host["arena"][rows] = np.arange(arena_start, arena_start + len(parents))
    for index, pool in enumerate(buffers.state.pools):
        targets = host["targets"][index, rows]
        # No more rows are kept than tokens may be emitted.
        reach = min(max(depth) + 1, item.budget) if item.proposed else max(depth) + 1
        _fill_places(targets[:reach], pool, item.lease.slot, item.start)


def _fill_sequences(buffers: InputBuffers, items: Sequence[Item], starts: list[int]) -> None:
    host, count = buffers.host, len(items)
    host["context"][:count] = starts
    length = buffers.state.block_tables.length
    lengths = []
    for pool in range(len(buffers.state.pools)):
        lengths.append(tuple([length(pool, item.lease.slot) for item in items]))
        host["entries"][pool, :count] = lengths[pool]
    buffers.lengths = tuple(lengths)


def _fill_places(places: npt.NDArray[np.generic], pool: Pool, slot: int, start: int) -> None:
    """Write where ``pool`` stores the positions from ``start`` on, chunk by chunk."""
    done, stop = 0, places.shape[0]
    while done < stop:
        first = pool.place(slot, start + done)
        count = min(CHUNK_POSITIONS - first % CHUNK_POSITIONS, stop - done)
        places[done : done + count] = first if count == 1 else np.arange(first, first + count)
        done += count


def _span_kind(item: Item) -> int:
    if item.kind is ItemKind.PREVIEW:
        return PREVIEWED
    return KNOWN_DRAFT if item.is_drafted and not item.proposed else int(item.is_drafted)


def _logit_rows(item: Item, all_logits: bool) -> int:
    """The number of rows of an item that need logits."""
    return item.rows if all_logits or item.kind is ItemKind.VERIFY else int(item.sample)

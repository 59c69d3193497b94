"""The row layout: which rows of a step belong to which sequence, for all kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

MAX_DRAFT_ROWS = 64
"""Most rows of a drafted sequence: the number of bits of a path."""

KNOWN_DRAFT = 2
"""In a span: a drafted sequence whose rows the host has laid out, tokens included."""

PREVIEWED = 3
"""In a span: a drafted sequence whose rows the host has laid out, and none of which is kept."""

MAX_SHORT_ROWS = 64
"""Sequences with more rows than this in a step are slices of prompts."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows ``start:stop`` of one sequence, as host integers.

    ``context`` positions are committed before the step. ``drafted`` rows may be rejected, so they
    write a trace instead of advancing the sequence; the others are certain. A segment is drafted or
    certain as a whole. Of drafted rows that are ``previewed`` none will be kept.
    """

    sequence: int
    slot: int
    start: int
    stop: int
    context: int
    drafted: bool
    previewed: bool = False

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class LaunchTraits:
    """The properties of a step, besides shapes, that grids and constants of launches depend on.

    single_rows    whether a sequence has one certain row
    draft_rows     the most rows of a drafted sequence, 0 = none
    trees          whether rows may be in the arena
    short_counts   every number of rows that a sequence in ``RowLayout.short`` may have
    """

    single_rows: bool
    draft_rows: int
    trees: bool
    short_counts: tuple[int, ...]

    @classmethod
    def of(cls, segments: Sequence[Segment], *, trees: bool) -> LaunchTraits:
        """The traits of a step of its own size."""
        counts = [segment.rows for segment in segments]
        return cls(
            single_rows=any(s.rows == 1 and not s.drafted for s in segments),
            draft_rows=max((s.rows for s in segments if s.drafted), default=0),
            trees=trees,
            short_counts=tuple(sorted({n for n in counts if n <= MAX_SHORT_ROWS})),
        )


@dataclass(frozen=True, slots=True)
class RowLayout:
    """R rows of B sequences; rows of one sequence are contiguous. Tensors may change between
    replays of a captured graph, ``traits`` may not.

    spans         int32 [B, 4]   first row, rows (0 = padding), slot, and 1 if drafted, or
                                 ``KNOWN_DRAFT`` if ``place_drafts`` is to leave it alone, or
                                 ``PREVIEWED`` if none of its rows will be kept
    path          int64 [R]      of drafted rows: bit j = row j of the segment is an ancestor or
                                 the row itself
    slices        int32 [S, 3]   first row, rows (0 = padding) and slot of certain sequences of
                                 several rows
    short, long   int32 [n]      sequences of at most, and of more than ``MAX_SHORT_ROWS`` rows;
                                 sequences without rows are padding
    short_rows    int32 [n]      rows of the sequences in ``short``, -1 = padding
    segments      the same on the host, for uncapturable back ends; rows of no segment are padding
    """

    spans: torch.Tensor
    path: torch.Tensor
    slices: torch.Tensor
    short: torch.Tensor
    long: torch.Tensor
    short_rows: torch.Tensor
    traits: LaunchTraits
    segments: tuple[Segment, ...] = ()

    @classmethod
    def of(cls, segments: Sequence[Segment], parent_row: torch.Tensor) -> RowLayout:
        """The layout of a step without padding, by one upload, and a few launches if rows are
        drafted. ``parent_row`` int64 [R] as in a step batch."""
        traits = LaunchTraits.of(segments, trees=any(s.drafted for s in segments))
        kinds = [PREVIEWED if s.previewed else int(s.drafted) for s in segments]
        spans = [(s.start, s.rows, s.slot, kind) for s, kind in zip(segments, kinds, strict=True)]
        slices = [(s.start, s.rows, s.slot) for s in segments if not s.drafted and s.rows > 1]
        short = [s.sequence for s in segments if s.rows <= MAX_SHORT_ROWS]
        long = [s.sequence for s in segments if s.rows > MAX_SHORT_ROWS]
        of_short = [range(s.start, s.stop) for s in segments if s.rows <= MAX_SHORT_ROWS]
        lists = (_flat(spans), _flat(slices), short, long, _flat(of_short))
        numbers = list(chain.from_iterable(lists))
        packed = torch.tensor(numbers, dtype=torch.int32, device=parent_row.device)
        span_part, slice_part, short_part, long_part, short_rows = packed.split(
            [len(one) for one in lists]
        )
        return cls(
            span_part.view(-1, 4),
            paths(segments, parent_row) if traits.draft_rows else parent_row,
            slice_part.view(-1, 3),
            short_part,
            long_part,
            short_rows,
            traits,
            tuple(segments),
        )


def paths(segments: Sequence[Segment], parent_row: torch.Tensor) -> torch.Tensor:
    """int64 [R]: bit j of a row is set if row j of its segment is an ancestor or the row itself.

    Valid for segments of at most ``MAX_DRAFT_ROWS`` rows. Reads no tensor on the host.
    """
    starts = torch.zeros_like(parent_row)
    for segment in segments:
        starts[segment.start : segment.stop] = segment.start
    row = torch.arange(parent_row.shape[0], device=parent_row.device)
    place = (row - starts).clamp(0, MAX_DRAFT_ROWS - 1)
    bits = torch.ones_like(parent_row) << place
    up = parent_row
    # Doubling: after n rounds the bits hold 2^n ancestors and ``up`` is the next one.
    for _ in range((MAX_DRAFT_ROWS - 1).bit_length()):
        above = up.clamp_min(0)
        bits = bits | torch.where(up >= 0, bits[above], 0)
        up = torch.where(up >= 0, up[above], -1)
    return bits


def _flat(table: Sequence[Sequence[int]]) -> list[int]:
    return [number for row in table for number in row]

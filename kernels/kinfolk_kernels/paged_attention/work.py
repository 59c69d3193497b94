"""Where the rows of each sequence lie, as tensors: all that attention kernels know of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.rows import Rows, Table

MAX_SHORT_ROWS = 64
"""Sequences with more rows than this in a step are slices of prompts."""


@dataclass(frozen=True, slots=True)
class Work:
    """B sequences. Tensors may change between replays of a captured graph, the rest may not.

    first, count, entries  int32 [B]   first row, number of rows, resident chunks
    few, many              int32 [n]   sequences of at most / more than ``MAX_SHORT_ROWS`` rows
    few_counts             every number of rows that a sequence in ``few`` may have
    most_rows              the largest number of rows that a sequence in ``many`` may have
    trees                  whether a row may lie in the arena
    """

    first: torch.Tensor
    count: torch.Tensor
    entries: torch.Tensor
    few: torch.Tensor
    many: torch.Tensor
    few_counts: tuple[int, ...]
    most_rows: int
    trees: bool


_recent: list[tuple[Rows, Table, Work]] = []


def work_of(rows: Rows, table: Table) -> Work:
    """The work of a step, computed once for all layers that share a table.

    A table that carries a ``work`` of its own, say in buffers that a captured graph reads, is asked
    for it first.
    """
    carried: Work | None = getattr(table, "work", None)
    if carried is not None:
        return carried
    for known_rows, known_table, work in _recent:
        if known_rows is rows and known_table is table:
            return work
    work = _work(rows, table)
    _recent.insert(0, (rows, table, work))
    del _recent[4:]
    return work


def _work(rows: Rows, table: Table) -> Work:
    sequences = table.blocks.shape[0]
    first, count, entries = ([0] * sequences for _ in range(3))
    for segment in rows.segments:
        first[segment.sequence] = segment.start
        count[segment.sequence] = segment.stop - segment.start
        entries[segment.sequence] = table.lengths[segment.sequence]
    few = [index for index, n in enumerate(count) if 0 < n <= MAX_SHORT_ROWS]
    many = [index for index, n in enumerate(count) if n > MAX_SHORT_ROWS]
    packed = torch.tensor([*first, *count, *entries, *few, *many], dtype=torch.int32)
    sizes = [sequences, sequences, sequences, len(few), len(many)]
    parts = packed.to(rows.positions.device, non_blocking=True).split(sizes)
    return Work(
        first=parts[0],
        count=parts[1],
        entries=parts[2],
        few=parts[3],
        many=parts[4],
        few_counts=tuple(sorted({count[index] for index in few})),
        most_rows=max((count[index] for index in many), default=0),
        trees=any(segment.drafted for segment in rows.segments),
    )

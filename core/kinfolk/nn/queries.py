"""Queries of the last rows of every sequence, kept by layers whose attention scores chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kinfolk.model_api import CommitBatch, StateView, StepBatch
from kinfolk.ops.binding import Ops
from kinfolk_kernels.row_layout import RowLayout
from kinfolk_kernels.write_queries.op import WRITE_QUERIES, WriteQueriesArguments


@dataclass(frozen=True, slots=True)
class QueryKind:
    """Queries of a layer as attention multiplies them: ``heads`` of ``dtype``, whose products with
    keys it multiplies by ``scale``."""

    heads: int
    dtype: torch.dtype
    scale: float


@dataclass(frozen=True, slots=True)
class ScoredAttention:
    """The ``layers`` that keep queries; ``kinds`` has an entry of each once it is built."""

    layers: tuple[int, ...]
    kinds: dict[int, QueryKind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftedQueries:
    """Queries [n, heads, dim] of the first rows of a step, until it is known which drafted rows are
    kept."""

    queries: torch.Tensor
    positions: torch.Tensor
    spans: torch.Tensor


class QueryWriter:
    """Keeps the last queries of each slot of one layer, in ``StateView.queries``."""

    def __init__(self, ops: Ops, layer: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layer = layer
        self._write = ops.bind(WRITE_QUERIES, WriteQueriesArguments(dtype, device))

    def __call__(
        self, queries: torch.Tensor, batch: StepBatch, view: StateView
    ) -> DraftedQueries | None:
        """Keep those of certain rows of a step. Returns what :meth:`commit` reads, if rows are
        drafted."""
        layout, nothing = batch.layout, batch.slot_of_sequence[:0]
        ring = view.queries(self.layer)
        self._write(
            queries, batch.positions, layout.spans, nothing[:, None], nothing, nothing, ring
        )
        held = _held_rows(layout, len(queries))
        if not held:
            return None
        if held < len(queries):
            queries = queries[:held].clone()  # a view would hold all of a slice
        return DraftedQueries(queries, batch.positions, layout.spans[:0])

    def commit(self, drafted: DraftedQueries, kept: CommitBatch, view: StateView) -> None:
        """Keep those of drafted rows that are kept."""
        self._write(
            drafted.queries,
            drafted.positions,
            drafted.spans,
            kept.path,
            kept.n_keep,
            kept.slot,
            view.queries(self.layer),
        )


def _held_rows(layout: RowLayout, rows: int) -> int:
    """How many of the first ``rows`` rows must wait for a commit: all of a captured step with
    drafts, where other rows are drafted each time."""
    if not layout.traits.draft_rows:
        return 0
    if not layout.segments:
        return rows
    drafted = (one for one in layout.segments if one.drafted and not one.previewed)
    return max((one.stop for one in drafted), default=0)

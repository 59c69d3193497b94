"""Scores chunks by the attention that the last rows of a sequence would give to them.

Keys are compressed when a chunk is full, and stay on the device wherever the chunk is. A step keeps
the queries of its last rows. The host waits for none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.model_api import CommitBatch, StateView, StepBatch
from kinfolk.ops.binding import Ops
from kinfolk.plans import StatePlan
from kinfolk_kernels.chunk_digest.op import CHUNK_DIGEST, ChunkDigestArguments, KeyDigest
from kinfolk_kernels.chunk_scores.op import CHUNK_SCORES, ChunkScoresArguments
from kinfolk_kernels.stored_kind import StoredKind
from kinfolk_kernels.write_queries.op import (
    RING_ROWS,
    WRITE_QUERIES,
    WriteQueriesArguments,
    recent,
)


@dataclass(frozen=True, slots=True)
class QueryKind:
    """Queries of a layer as attention multiplies them: ``heads`` of ``dtype``, whose products with
    keys it multiplies by ``scale``."""

    heads: int
    dtype: torch.dtype
    scale: float


class QkScorer:
    """Compressed keys in ``places`` places, a chunk each, and the last queries of ``slots`` slots.

    ``layers`` are those of :func:`kinfolk.state.score_layers.scored_layers`; ``slots`` includes the
    dummy slot. Whoever plans steps gives a chunk a place when it is full, and takes it back with
    the chunk. Raises :class:`ValueError` if the layers do not store keys alike.
    """

    def __init__(
        self,
        ops: Ops,
        plan: StatePlan,
        layers: Sequence[int],
        queries: QueryKind,
        *,
        places: int,
        slots: int,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        sections = [plan.paged(layer).section("k") for layer in self.layers]
        keys = sections[0]
        if any(
            (one.heads, one.dim, one.codec) != (keys.heads, keys.dim, keys.codec)
            for one in sections
        ):
            raise ValueError(f"layers {self.layers} store keys of different shapes or formats")
        shape = (len(self.layers), queries.heads, keys.dim)
        self.keys = KeyDigest.empty((places, len(self.layers), keys.heads), keys.dim, device)
        self.ring = torch.zeros(slots, RING_ROWS, *shape, dtype=queries.dtype, device=device)
        kind = StoredKind.named(keys.heads, keys.dim, keys.codec.format)
        self._chunk_digest = ops.bind(CHUNK_DIGEST, ChunkDigestArguments(kind, device))
        self._write_queries = ops.bind(WRITE_QUERIES, WriteQueriesArguments(queries.dtype, device))
        self._chunk_scores = ops.bind(
            CHUNK_SCORES,
            ChunkScoresArguments(
                heads=queries.heads,
                kv_heads=keys.heads,
                dim=keys.dim,
                scale=queries.scale,
                rotated=keys.codec.rotation != "none",
                dtype=queries.dtype,
                device=device,
            ),
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.keys.codes.nbytes + self.keys.scales.nbytes + self.ring.nbytes

    def compress(
        self, view: StateView, blocks: torch.Tensor, firsts: torch.Tensor, places: torch.Tensor
    ) -> None:
        """Compress the keys of N full chunks; int32 [N] each: their blocks, those of the first
        chunks of their sequences, and their places, -1 = padding."""
        for index, layer in enumerate(self.layers):
            keys = view.paged(layer).pool("k")
            self._chunk_digest(keys, blocks, firsts, places, self.keys.layer(index))

    def keep_queries(
        self, queries: Sequence[torch.Tensor], batch: StepBatch, kept: CommitBatch
    ) -> None:
        """Keep the last queries of a step, [R, heads, dim] for each of ``layers``: those of certain
        rows, and those of drafted rows in ``kept``."""
        for index, of_layer in enumerate(queries):
            self._write_queries(
                of_layer,
                batch.positions,
                batch.layout.spans,
                kept.path,
                kept.n_keep,
                kept.slot,
                self.ring[:, :, index],
            )

    def queries(self, slot: int, length: int, rows: int) -> torch.Tensor:
        """Those of the last ``rows`` of ``length`` positions, [rows, layers, heads, dim], oldest
        first. ``rows`` is at most ``RING_ROWS``, and at most what has run in this slot."""
        return recent(self.ring, slot, length, rows)

    def scores(
        self, queries: torch.Tensor, places: torch.Tensor, keys: KeyDigest | None = None
    ) -> torch.Tensor:
        """float32 [C], on the device, for chunks with digests in ``places`` int32 [C] of ``keys``,
        by default those of this scorer: the largest share of attention of any row, layer and head;
        -1 for a chunk without a digest."""
        return self._chunk_scores(queries, self.keys if keys is None else keys, places)

    def warm_up(self, warmup: KernelWarmup, view: StateView) -> None:
        """Compile what :meth:`compress` and :meth:`scores` launch, for any number of rows, so that
        no step waits for it later."""
        padding = torch.full((1,), -1, dtype=torch.int32, device=self.ring.device)
        first = torch.zeros_like(padding)
        warmup.before("digests of chunks", lambda: self.compress(view, first, first, padding))
        for rows in range(1, RING_ROWS + 1):
            queries = self.ring[0, :rows]
            warmup.before(("scores of chunks", rows), partial(self.scores, queries, padding))

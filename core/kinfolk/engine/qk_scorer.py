"""Scores chunks by the attention that the last rows of a sequence would give to them.

Keys are compressed when a chunk is full, and stay on the device wherever the chunk is. Layers keep
the queries of the last rows (``nn/queries.py``). The host waits for none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.model_api import StateView
from kinfolk.nn.queries import QueryKind
from kinfolk.ops.binding import Ops
from kinfolk.plans import StatePlan
from kinfolk.state.operations import DigestChunk
from kinfolk.state.transfer import Transfer
from kinfolk_kernels.chunk_digest.op import CHUNK_DIGEST, ChunkDigestArguments, KeyDigest
from kinfolk_kernels.chunk_scores.op import CHUNK_SCORES, ChunkScoresArguments
from kinfolk_kernels.stored_kind import StoredKind
from kinfolk_kernels.write_queries.op import RING_ROWS, recent

COMPRESSED_AT_ONCE = 64
"""Most chunks of a launch: a slice of a prompt fills half as many."""

COMPRESSION_STAGES = 16
"""Launches whose arguments may be on their way to the device."""


class QkScorer:
    """Compressed keys in ``places`` places, a chunk each, and the last queries of ``slots`` slots.

    ``layers`` are those of :func:`kinfolk.state.score_layers.scored_layers`; ``slots`` includes the
    dummy slot, and places for suspended sequences. Whoever plans steps gives a chunk a place when
    it is full, and takes it back with the chunk
    (:class:`kinfolk.state.digest_places.DigestPlaces`). Raises :class:`ValueError` if the layers do
    not store keys alike.
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
        self.kind = queries
        self._device = device
        self._digests = (places, len(self.layers), keys.heads), keys.dim
        self._queries = slots, RING_ROWS, len(self.layers), queries.heads, keys.dim
        self.allocate()
        kind = StoredKind.named(keys.heads, keys.dim, keys.codec.format)
        self._chunk_digest = ops.bind(CHUNK_DIGEST, ChunkDigestArguments(kind, device))
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
        one = ("int32", (COMPRESSED_AT_ONCE,))
        fields = dict.fromkeys(("blocks", "firsts", "places"), one)
        self._transfer = Transfer(fields, device, COMPRESSION_STAGES)
        # Of each stage, in the order of their use: the event that the device has read it.
        self._read: list[Any] = []

    def allocate(self) -> None:
        """Allocate places and queries; they are zero."""
        self.keys = KeyDigest.empty(*self._digests, self._device)
        self.ring = torch.zeros(self._queries, dtype=self.kind.dtype, device=self._device)

    def free(self) -> None:
        """Free what was allocated."""
        self.keys = KeyDigest(self.keys.codes.new_empty(0), self.keys.scales.new_empty(0))
        self.ring = self.ring.new_empty(0)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.keys.codes.nbytes + self.keys.scales.nbytes + self.ring.nbytes

    # -- keys -----------------------------------------------------------------------------------

    def compress(self, view: StateView, chunks: Sequence[DigestChunk]) -> None:
        """Compress the keys of full chunks; the host does not wait."""
        for start in range(0, len(chunks), COMPRESSED_AT_ONCE):
            part = chunks[start : start + COMPRESSED_AT_ONCE]
            self._turn()
            host, count = self._transfer.host, len(part)
            host["blocks"][:count] = [chunk.block for chunk in part]
            host["firsts"][:count] = [chunk.first for chunk in part]
            host["places"][:count] = [chunk.place for chunk in part]
            self._transfer.upload()
            if self._device.type == "cuda":
                event = torch.cuda.Event()
                event.record()
                self._read.append(event)
            device = self._transfer.device
            self._launch(view, *(device[name][:count] for name in ("blocks", "firsts", "places")))

    def _turn(self) -> None:
        """Go on to the next stage, which the device has long read."""
        self._transfer.turn()
        if len(self._read) == COMPRESSION_STAGES:
            self._read.pop(0).synchronize()

    def _launch(
        self, view: StateView, blocks: torch.Tensor, firsts: torch.Tensor, places: torch.Tensor
    ) -> None:
        for index, layer in enumerate(self.layers):
            keys = view.paged(layer).pool("k")
            self._chunk_digest(keys, blocks, firsts, places, self.keys.layer(index))

    # -- queries --------------------------------------------------------------------------------

    def queries_of(self, layer: int) -> torch.Tensor:
        """Those of one of ``layers``, a view [slots, RING_ROWS, heads, dim]."""
        return self.ring[:, :, self.layers.index(layer)]

    def copy_queries(self, source: int, target: int) -> None:
        """Copy those of a slot to another one."""
        self.ring[target].copy_(self.ring[source])

    def queries(self, slot: int, length: int, rows: int, *, in_order: bool = True) -> torch.Tensor:
        """Those of the last ``rows`` of ``length`` positions, [rows, layers, heads, dim], oldest
        first unless they may come in any order. ``rows`` is at most ``RING_ROWS``, and at most what
        has run in this slot. If more positions have run since, theirs are in the places of the
        oldest."""
        if rows == RING_ROWS and not in_order:
            return self.ring[slot]
        return recent(self.ring, slot, length, rows)

    # -- scores ---------------------------------------------------------------------------------

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
        warmup.before("digests of chunks", lambda: self._launch(view, first, first, padding))
        for rows in range(1, RING_ROWS + 1):
            queries = self.ring[0, :rows]
            warmup.before(("scores of chunks", rows), partial(self.scores, queries, padding))

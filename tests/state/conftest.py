"""A KV cache manager with the tensors that it manages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lazy_streams import LazyCopies, LazyMain

from kinfolk.plans import (
    Codec,
    Paged,
    Recurrent,
    RecurrentTensor,
    ScoredLayers,
    Section,
    StateLimits,
    StatePlan,
)
from kinfolk.state.chunks import NO_DIGEST, SlotLease
from kinfolk.state.copies import HostStreams
from kinfolk.state.host_rows import HostLayout, HostRows
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.operations import DigestChunk
from kinfolk.state.state import State
from kinfolk.types import CHUNK_POSITIONS

CONTEXT = 4096

ROW_BYTES = CHUNK_POSITIONS * 4
"""Of a block of the toy: a number at each position."""


class ToyCache:
    """A KV cache manager and a state whose paged rows and recurrent tensors are single numbers.

    ``host_rows``: most rows in host memory; ``streams``: how late its streams are. With ``digests``
    places, a digest of a full chunk is a copy of its numbers and of those of the first chunk.
    """

    def __init__(
        self,
        *,
        windows: tuple[int | None, ...] = (None,),
        blocks: tuple[int, ...] = (12,),
        slots: int = 3,
        checkpoints: int = 3,
        spare_slots: int = 0,
        step_rows: int = 128,
        recurrent: bool = True,
        host_rows: int | None = None,
        streams: HostStreams | LazyCopies | LazyMain | None = None,
        digests: int = 0,
    ) -> None:
        limits = StateLimits(
            slots=slots,
            checkpoints=checkpoints,
            spare_slots=spare_slots,
            blocks=blocks,
            context=CONTEXT,
            step_rows=step_rows,
            host_bytes=None if host_rows is None else host_rows * ROW_BYTES,
        )
        if digests:
            resident = blocks[0] * CONTEXT // CHUNK_POSITIONS // digests
            limits = replace(limits, scored=ScoredLayers((0,)), resident=resident)
            assert limits.digests >= digests
        number = Section("k", 1, 1, Codec("f32"))
        layers = [Paged((number,), window) for window in windows]
        self.plan = StatePlan(
            (*layers, Recurrent((RecurrentTensor("sum", (1,)),))) if recurrent else tuple(layers)
        )
        assert self.plan.windows == windows
        host = HostRows(HostLayout.of(self.plan), limits.host_bytes)
        self.kv_cache = KVCacheManager(windows, limits, recurrent=recurrent, host=host)
        self.state = State(self.plan, limits, torch.device("cpu"), streams)
        self.streams = self.state.copies.streams
        self.rows = [self.state.paged(layer).pool("k")[:, 0, :, 0] for layer in range(len(windows))]
        self.scorer = ToyScorer(self.rows[0], limits.digests) if digests else None
        self.state.scorer = self.scorer
        self.sums = self.state.recurrent(len(windows))["sum"] if recurrent else None

    def apply(self, *, step_follows: bool = False) -> tuple:
        """Carry out the pending operations; returns the operations. If a step follows, whatever
        applies next launches the saves behind it."""
        operations = self.kv_cache.take_operations()
        self.state.apply(operations, step_follows=step_follows)
        return operations

    def write(self, lease: SlotLease, start: int, numbers: list[int]) -> None:
        """What a step does, on the main stream."""
        count = len(numbers)
        for pool, rows in zip(self.state.pools, self.rows, strict=True):
            places = torch.tensor([pool.place(lease.slot, start + n) for n in range(count)])
            self.streams.on_main(
                partial(put, rows, places, torch.tensor(numbers, dtype=rows.dtype))
            )

    def set_sum(self, slot: int, numbers: list[int]) -> None:
        if self.sums is not None:
            self.streams.on_main(partial(self.sums[slot].fill_, sum(numbers) % 2**20))

    def grow(self, lease: SlotLease, numbers: list[int], history: list[int]) -> None:
        """Feed certain rows after ``history``."""
        self.kv_cache.tables.extend(lease, len(history) + len(numbers))
        self.apply(step_follows=True)
        self.write(lease, len(history), numbers)
        self.set_sum(lease.slot, [*history, *numbers])
        self.kv_cache.tables.advance(lease, len(history) + len(numbers))
        self.apply()

    def check(self, lease: SlotLease, history: list[int]) -> None:
        """The slot's tensors hold ``history`` wherever its tables say so."""
        assert self.kv_cache.tables.length(lease) == len(history)
        if isinstance(self.streams, LazyMain):
            self.streams.finish()
        if self.sums is not None:
            assert self.sums[lease.slot].item() == sum(history) % 2**20
        if self.scorer is not None:
            for n, place in enumerate(self.kv_cache.tables.digest_places(lease)):
                if place != NO_DIGEST:
                    own = history[n * CHUNK_POSITIONS : (n + 1) * CHUNK_POSITIONS]
                    assert self.scorer.kept[place] == (own, history[:CHUNK_POSITIONS])
        for index, pool in enumerate(self.state.pools):
            table = self.kv_cache.tables.table(lease, index)
            assert pool.tables[lease.slot] == dict(table)
            for chunk, block in table:
                numbers = history[chunk * CHUNK_POSITIONS : (chunk + 1) * CHUNK_POSITIONS]
                assert self.rows[index][block, : len(numbers)].tolist() == numbers


class ToyScorer:
    """``kept``: numbers of the chunk and of its first chunk, by place."""

    def __init__(self, rows: torch.Tensor, places: int) -> None:
        self.rows, self.places = rows, places
        self.kept: dict[int, tuple[list[float], list[float]]] = {}
        self.copied: list[tuple[int, int]] = []

    def copy_queries(self, source: int, target: int) -> None:
        self.copied.append((source, target))

    def compress(self, state: State, chunks: list[DigestChunk]) -> None:
        for chunk in chunks:
            assert 0 <= chunk.place < self.places
            both = self.rows[chunk.block].tolist(), self.rows[chunk.first].tolist()
            self.kept[chunk.place] = both


def put(rows: torch.Tensor, places: torch.Tensor, numbers: torch.Tensor) -> None:
    rows[places // CHUNK_POSITIONS, places % CHUNK_POSITIONS] = numbers


@pytest.fixture(scope="session")
def state_toys() -> SimpleNamespace:
    """``ToyCache``: a KV cache manager and the tensors that it manages."""
    return SimpleNamespace(ToyCache=ToyCache)


@pytest.fixture
def make_toy_cache():
    return ToyCache

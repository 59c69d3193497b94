"""Drives a loaded model step by step, with access to its logits and its state."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from kinfolk.engine.buckets import Bucket, Buckets
from kinfolk.engine.commit_batch import commit_batch, commit_tree_rows
from kinfolk.engine.cuda_graph import capture_for
from kinfolk.engine.executor import CapturedStep, EagerExecutor, GraphExecutor
from kinfolk.engine.input_batch import InputBatch, build_input_batch, fill, take_changes
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.outputs import LogitsOutputs
from kinfolk.model_api import Forward
from kinfolk.plans import PoolRule, SlotMapping
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.chunks import SlotLease
from kinfolk.state.geometry import chunks_for
from kinfolk.state.state import State
from kinfolk.types import CHUNK_POSITIONS, DUMMY

Parents = Sequence[int] | None


class Driver:
    """Runs sequences of one model by explicit steps, and checks integrity after every step.

    Any full chunk of a paged sequence may be evicted, even one that the hook ``map_slots`` of the
    model would protect.
    ``replays``: steps are padded and captured as the engine's are; on the CPU, a replay runs them
    again.
    """

    def __init__(self, loaded: LoadedModel, *, replays: bool = False) -> None:
        free = tuple(PoolRule(window, sink=0, tail=0) for window in loaded.plan.windows)
        loaded = replace(loaded, mapping=SlotMapping(free))
        self.loaded = loaded
        self.kv_cache, self.state = loaded.new_state()
        self._replays = Replays(loaded, self.state) if replays else None
        self._last: tuple[list[Item], InputBatch, Forward] | None = None

    def open(self, positions: int = 512, *, paged: bool = False) -> SlotLease:
        """Start a sequence; chunks of a ``paged`` one may be evicted."""
        return self.kv_cache.open(positions, resident=chunks_for(positions) if paged else None)

    @torch.inference_mode()
    def step(self, items: Sequence[Item]) -> list[torch.Tensor]:
        """Run items together; returns logits float32 [rows, vocabulary] of each. Items without
        drafts advance their sequence."""
        for item in items:
            self.kv_cache.tables.extend(item.lease, item.start + len(item.tokens))
        self.state.apply(self.kv_cache.take_operations())
        if self._replays is None:
            inputs = build_input_batch(items, self.state, all_logits=True)
            forward = self.loaded.model.forward(inputs.batch, self.state)
        else:
            inputs, forward = self._replays.run(items)
        logits = self.loaded.model.logits(self.loaded.model.norm(forward.hidden))
        for item in items:
            if item.kind is not ItemKind.VERIFY:
                self.kv_cache.tables.advance(item.lease, item.start + len(item.tokens))
        self._last = (list(items), inputs, forward)
        self.check_integrity()
        return self._by_item(logits)

    @property
    def forward(self) -> Forward:
        """The result of the last step, which may be padded."""
        assert self._last is not None
        return self._last[2]

    def features(self) -> list[torch.Tensor]:
        """Features [rows, N * width] of each item of the last step."""
        features = self.forward.features
        assert features is not None, "the forward returned no features"
        return self._by_item(features)

    def _by_item(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Rows [R, ...] of the last step, without padding, of each of its items."""
        assert self._last is not None
        counts = [len(item.tokens) for item in self._last[0]]
        return list(rows[: sum(counts)].split(counts))

    def feed(
        self, sequences: Mapping[SlotLease, Sequence[int]], *, rows: int = 512
    ) -> dict[SlotLease, torch.Tensor]:
        """Append tokens to several sequences at once, ``rows`` of each a step. Returns the logits
        float32 [tokens, vocabulary] of each."""
        logits_of: dict[SlotLease, list[torch.Tensor]] = {lease: [] for lease in sequences}
        rest = {lease: list(tokens) for lease, tokens in sequences.items()}
        while any(rest.values()):
            items = [
                Item(
                    lease,
                    "",
                    ItemKind.PREFILL,
                    tuple(tokens[:rows]),
                    self.kv_cache.tables.length(lease),
                )
                for lease, tokens in rest.items()
                if tokens
            ]
            for item, logits in zip(items, self.step(items), strict=True):
                logits_of[item.lease].append(logits)
                rest[item.lease] = rest[item.lease][len(item.tokens) :]
        return {lease: torch.cat(parts) for lease, parts in logits_of.items()}

    def draft(
        self, drafts: Mapping[SlotLease, tuple[Sequence[int], Parents]]
    ) -> dict[SlotLease, torch.Tensor]:
        """Run drafted tokens, the first of each sequence being its pending token. No sequence
        advances. Returns the logits float32 [tokens, vocabulary] of each."""
        items = [
            Item(
                lease,
                "",
                ItemKind.VERIFY,
                tuple(tokens),
                self.kv_cache.tables.length(lease),
                parents=None if parents is None else tuple(parents),
            )
            for lease, (tokens, parents) in drafts.items()
        ]
        return dict(zip(drafts, self.step(items), strict=True))

    @torch.inference_mode()
    def keep(self, paths: Mapping[SlotLease, Sequence[int]]) -> None:
        """Commit rows of the last draft, given as indices within each sequence's rows."""
        assert self._last is not None
        items, inputs, forward = self._last
        width = inputs.sampled.width
        kept = [list(paths[item.lease]) for item in items]
        path = torch.tensor([rows + [-1] * (width - len(rows)) for rows in kept])
        path = path.to(self.state.device)
        n_keep = torch.tensor([len(rows) for rows in kept], device=self.state.device)
        commit = commit_batch(inputs.sampled, path, n_keep)
        self.loaded.model.commit(forward.trace, commit, self.state)
        commit.finish()
        commit_tree_rows(self.state, inputs.batch, inputs.sampled, commit)
        for item, rows in zip(items, kept, strict=True):
            self.kv_cache.tables.advance(item.lease, item.start + len(rows))
        self.check_integrity()

    def apply(self) -> None:
        """Run the pending state operations without a model step."""
        self.state.apply(self.kv_cache.take_operations())
        self.check_integrity()

    def shuffle(self, seed: int) -> None:
        """Shuffle the free slots and blocks."""
        source = random.Random(seed)
        source.shuffle(self.kv_cache.tables.free)
        for pool in self.kv_cache.pools:
            source.shuffle(pool.free)

    def exchange(self, lease: SlotLease, chunks: Sequence[int], *, pool: int, seed: int) -> None:
        """Evict chunks of a paged sequence; the next step has them in other blocks."""
        tables = self.kv_cache.tables
        for chunk in chunks:
            tables.evict(lease, chunk, pool=pool)
        self.apply()
        self.shuffle(seed)
        for chunk in chunks:
            tables.fetch(lease, chunk, pool=pool)
        self.apply()
        for chunk in chunks:
            tables.recall(lease, chunk, pool=pool)

    def poison(self, lease: SlotLease) -> None:
        """Fill all state of other owners with NaN, except the dummies of padding rows."""
        for pool in self.state.pools:
            mine = {DUMMY, *pool.tables[lease.slot].values()}
            others = [block for block in range(pool.data.shape[0]) if block not in mine]
            # All bits set are NaN in every floating-point format.
            pool.data[others] = 0xFF
        for tensor in self.state.recurrent_tensors():
            others = [slot for slot in range(tensor.shape[0]) if slot not in (DUMMY, lease.slot)]
            tensor[others] = float("nan")

    def kept(self, lease: SlotLease) -> list[torch.Tensor]:
        """Copies of the state of a sequence: recurrent tensors, and the rows of committed
        positions."""
        copies = [tensor[lease.slot].clone() for tensor in self.state.recurrent_tensors()]
        length = self.kv_cache.tables.length(lease)
        for pool in self.state.pools:
            for chunk, block in sorted(pool.tables[lease.slot].items()):
                rows = max(0, min(CHUNK_POSITIONS, length - chunk * CHUNK_POSITIONS))
                for section in pool.layout.sections.values():
                    for plane in pool.planes(pool.data, section):
                        copies.append(plane[block, :, :rows].clone())
        return [tensor.contiguous().view(torch.uint8) for tensor in copies]

    def check_integrity(self) -> None:
        self.kv_cache.check_integrity()
        self.state.check_integrity()
        if self.loaded.experts is not None:
            self.loaded.experts.check_integrity()


class Replays:
    """Runs steps of one state as replays of captured steps, each captured at its first use."""

    def __init__(self, loaded: LoadedModel, state: State) -> None:
        eager = EagerExecutor(loaded, state, KernelWarmup(loaded.ops, loaded.device))
        self.executor = GraphExecutor(eager, capture_for(loaded.device), Buckets.of(state, None))
        self._steps: dict[Bucket, CapturedStep[LogitsOutputs]] = {}

    def run(self, items: Sequence[Item]) -> tuple[InputBatch, Forward]:
        """The step with its padding. The results are those of the last run of its bucket."""
        bucket = self.executor.sizes.smallest(items)
        assert bucket is not None, "no captured step is so large"
        if bucket not in self._steps:
            self._steps[bucket] = self.executor.capture_to_logits(bucket)
        step = self._steps[bucket]
        step.buffers.turn()
        fill(step.buffers, items)
        step.buffers.put_changes(take_changes(self.executor.state))
        outputs = self.executor.replay(step)
        drafted = [len(item.tokens) for item in items if item.kind is ItemKind.VERIFY]
        sampled = step.buffers.sampled(bucket.traits, len(items), max(drafted, default=1))
        return InputBatch(outputs.batch, sampled), outputs.forward

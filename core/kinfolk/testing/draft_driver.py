"""Drives a drafter with weights step by step, on features that the driver makes up.

The target runs for its own state; the features of a row are a sum over the tokens up to it, so they
are the same, bit for bit, in whatever steps a text is computed, and differ between the branches of
a tree. What a drafter makes of them can then be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from kinfolk.draft_api import ModelDrafter, Proposals
from kinfolk.engine.commit_batch import commit_batch
from kinfolk.engine.draft_buffers import DraftBuffers, Lane
from kinfolk.engine.loading import LoadedModel
from kinfolk.plans import Paged, Shared
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Sampling
from kinfolk.spec.proposals import ProposalStore
from kinfolk.state.chunks import SlotLease
from kinfolk.testing.driver import Driver
from kinfolk.types import CHUNK_POSITIONS, DUMMY
from kinfolk_kernels.place_drafts.op import PlaceDraftsArguments, place_drafts

_FADING: Final = 0.6
"""How much of the row before a row of features contains: late tokens count most."""


class DraftDriver(Driver):
    """Runs sequences of a target and its drafter by explicit steps.

    ``texts`` are the committed tokens of each sequence. ``drafter`` may be replaced by a wrapper.
    Draft only for sequences of the last step: block tables are uploaded with steps.
    """

    def __init__(self, loaded: LoadedModel, *, replays: bool = False) -> None:
        assert loaded.drafter is not None
        super().__init__(replace(loaded, drafter=None), replays=replays)
        self.plan = loaded.drafter.plan
        self.drafter: ModelDrafter = loaded.drafter.drafter
        self.texts: dict[SlotLease, list[int]] = {}
        vocabulary = loaded.info.vocabulary
        slots = self.state.limits.slots + 1
        device = self.state.device
        place = partial(place_drafts, PlaceDraftsArguments(vocabulary, device))
        self._store = ProposalStore(slots, 1, place, device)
        width = self.plan.feature_width(loaded.config.width)
        generator = torch.Generator().manual_seed(0)
        self._table = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
        self._trace: Sequence[Any] = ()

    @property
    def layers(self) -> range:
        """The drafter's layers in the state plan."""
        count = len(self.loaded.plan.layers)
        return range(count - len(self.plan.state), count)

    # -- steps ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self, items: Sequence[Item]) -> list[torch.Tensor]:
        logits = super().step(items)
        assert self._last is not None
        batch = self._last[1].batch
        features = self._features(items, batch.rows)
        self._trace = self.drafter.extend(features, batch, self.state)
        for item in items:
            if item.kind is not ItemKind.VERIFY:
                self._text(item.lease).extend(item.tokens)
        return logits

    @torch.inference_mode()
    def keep(self, paths: Mapping[SlotLease, Sequence[int]]) -> None:
        assert self._last is not None
        items, inputs, _ = self._last
        device = self.state.device
        width = inputs.sampled.width
        kept = [list(paths[item.lease]) for item in items]
        path = torch.tensor([rows + [-1] * (width - len(rows)) for rows in kept], device=device)
        counts = torch.tensor([len(rows) for rows in kept], device=device)
        commit = commit_batch(inputs.sampled, path, counts)
        self.drafter.commit(self._trace, commit, self.state)
        commit.finish()
        super().keep(paths)
        for item, rows in zip(items, kept, strict=True):
            self._text(item.lease).extend(item.tokens[row] for row in rows)

    @torch.inference_mode()
    def propose(
        self, lanes: Mapping[SlotLease, int], *, padding: int = 0, depth: int | None = None
    ) -> Proposals:
        """Draft for sequences whose last chosen tokens are these, with ``padding`` lanes behind.
        ``depth``: tokens that are wanted of each; ``None`` = all."""
        for lease, token in lanes.items():
            self._store.drafts.pending[lease.slot] = token
            self._store.length[lease.slot] = self.kv_cache.tables.length(lease)
        count = len(lanes) + padding
        buffers = DraftBuffers(self.state, count, self.plan, depth or self.plan.depth)
        buffers.put([Lane(lease.slot, Sampling()) for lease in lanes])
        buffers.upload()
        proposals = self.drafter.draft(buffers.draft_block(self._store), self.state)
        if not padding:
            return proposals
        parents = proposals.parents
        return Proposals(
            proposals.tokens[: len(lanes)],
            proposals.scores[: len(lanes)],
            None if parents is None else parents[: len(lanes)],
        )

    def fork(self, lease: SlotLease, positions: int) -> SlotLease:
        """A second sequence with the same committed state."""
        forked = self.kv_cache.tables.fork(lease, positions)
        self.texts[forked] = list(self._text(lease))
        return forked

    # -- features -------------------------------------------------------------------------------

    def _text(self, lease: SlotLease) -> list[int]:
        return self.texts.setdefault(lease, [])

    def _features(self, items: Sequence[Item], rows: int) -> torch.Tensor | None:
        """bfloat16 [rows, N * width]; rows of padding repeat the first one."""
        if not self._table.shape[1]:
            return None
        made: list[torch.Tensor] = []
        for item in items:
            before = torch.zeros(self._table.shape[1], dtype=torch.float64)
            for token in self._text(item.lease):
                before = self._next(before, token)
            own: list[torch.Tensor] = []
            parents = item.parents or range(-1, len(item.tokens) - 1)
            for token, parent in zip(item.tokens, parents, strict=True):
                own.append(self._next(before if parent < 0 else own[parent], token))
            made += own
        made += made[:1] * (rows - len(made))
        return torch.stack(made).bfloat16().to(self.state.device)

    def _next(self, before: torch.Tensor, token: int) -> torch.Tensor:
        return before * _FADING + self._table[token]

    # -- state ----------------------------------------------------------------------------------

    def drafters_state(self, lease: SlotLease) -> dict[str, torch.Tensor]:
        """What the drafter keeps of a sequence, by name: recurrent tensors, and the numbers of
        committed positions that the window of their layer shows. Codes of quantised sections are
        left out, their scales are not."""
        self.apply()
        found: dict[str, torch.Tensor] = {}
        length = self.kv_cache.tables.length(lease)
        for layer in self.layers:
            kept = self.loaded.plan.layers[layer]
            if isinstance(kept, Paged):
                first = 0 if kept.window is None else max(0, length - kept.window + 1)
                found |= self._paged_numbers(layer, lease, range(first, length))
            elif not isinstance(kept, Shared):
                for name, tensor in self.state.recurrent(layer).items():
                    found[f"{name!r} of layer {layer}"] = tensor[lease.slot].clone()
        return found

    def _paged_numbers(
        self, layer: int, lease: SlotLease, positions: range
    ) -> dict[str, torch.Tensor]:
        pool = self.state.pools[self.state.paged(layer).pool_index]
        places = torch.tensor([pool.place(lease.slot, each) for each in positions]).long()
        block, offset = places // CHUNK_POSITIONS, places % CHUNK_POSITIONS
        found = {}
        for (owner, name), section in pool.layout.sections.items():
            for plane in pool.planes(pool.data, section) if owner == layer else ():
                if plane.is_floating_point():
                    found[f"{name!r} of layer {layer}"] = plane[block, :, offset].clone()
        return found

    def poison_all_but(self, lease: SlotLease) -> None:
        """Fill everything with NaN but what a sequence has committed, and the dummies: other
        sequences, rows that were rejected, the arena."""
        self.apply()
        self.poison(lease)
        length = self.kv_cache.tables.length(lease)
        for pool in self.state.pools:
            pool.arena.fill_(0xFF)
            for chunk, block in pool.tables[lease.slot].items():
                first = max(0, length - chunk * CHUNK_POSITIONS)
                for section in pool.layout.sections.values():
                    for plane in pool.planes(pool.data, section):
                        plane[block, :, first:] = float("nan") if plane.is_floating_point() else 255

    def outside_of_the_arena(self) -> list[torch.Tensor]:
        """Copies of all that a draft must not change, without the dummies of padding."""
        copies = [pool.data[DUMMY + 1 :].clone() for pool in self.state.pools]
        return copies + [tensor[DUMMY + 1 :].clone() for tensor in self.state.recurrent_tensors()]

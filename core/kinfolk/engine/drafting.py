"""Drafting: a drafter with weights beside the model, whatever kind of drafter it is.

Behind every forward the drafter writes its state, and behind the commit of the model its own is
committed. Behind a step, lanes are drafted for without waiting for the step's result: what they
start from, and what is proposed, stays on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.draft_api import DraftPlan, ModelDrafter
from kinfolk.engine.draft_buffers import DraftBuffers, Lane
from kinfolk.engine.input_buffers import SampledSequences
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.gguf.file import GGUFFile
from kinfolk.model_api import CommitBatch, Forward, StepBatch
from kinfolk.ops.binding import Ops
from kinfolk.spec.plant import OUTPUT_INVALID, PlantedAcceptance
from kinfolk.spec.proposals import ProposalStore
from kinfolk.spec.trees import chains, trees
from kinfolk.state.state import State
from kinfolk.verify_api import Kept
from kinfolk_kernels.draft_trees.op import DRAFT_TREES, DraftTreesArguments
from kinfolk_kernels.place_drafts.op import PLACE_DRAFTS, PlaceDraftsArguments

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A built drafter. It proposes ``rows`` tokens for a sequence, a ``tree`` or a chain. ``file``
    holds its weights, ``None`` if they come from nowhere. ``planted``: drafts are accepted by
    draws, which makes the output invalid; only for measuring."""

    name: str
    plan: DraftPlan
    drafter: ModelDrafter
    rows: int
    tree: bool = False
    file: GGUFFile | None = None
    planted: PlantedAcceptance | None = None


class Drafting:
    """A drafter on the state of its target, and the proposals for every slot.

    ``failures`` counts drafts that raised; the first is logged, and its lanes go on without one.
    """

    def __init__(
        self,
        loaded: LoadedDrafter,
        vocabulary: int,
        ops: Ops,
        state: State,
        kernel_warmup: KernelWarmup,
    ) -> None:
        self.loaded, self.state = loaded, state
        device, slots = state.device, state.limits.slots + 1
        place = ops.bind(PLACE_DRAFTS, PlaceDraftsArguments(vocabulary, device))
        self.store = ProposalStore(slots, loaded.rows, place, device)
        # Random weights give trees without depth, in which no length could be planted.
        seeded = loaded.planted is not None
        arguments = DraftTreesArguments(loaded.rows, chain_seeded=seeded, device=device)
        self._draft_trees = ops.bind(DRAFT_TREES, arguments) if loaded.tree else None
        self.failures = 0
        self._kernel_warmup = kernel_warmup
        if loaded.planted is not None:
            log.warning(OUTPUT_INVALID)

    # -- within a step ------------------------------------------------------------------------

    def place(self, batch: StepBatch) -> None:
        """Fill the drafted rows of a step, before its forward."""
        if batch.layout.traits.draft_rows > 1:
            self.store.place(batch)

    def extend(self, forward: Forward, batch: StepBatch) -> Sequence[Any]:
        """Write the drafter's state for the rows of a step. Returns what the commit needs."""
        return self.loaded.drafter.extend(forward.features, batch, self.state)

    def commit(self, trace: Sequence[Any], kept: CommitBatch) -> None:
        """Advance the drafter's state along kept rows."""
        self.loaded.drafter.commit(trace, kept, self.state)

    def note(self, batch: StepBatch, sampled: SampledSequences, kept: Kept) -> None:
        """Remember what the sampled sequences chose, and behind how many positions."""
        last = kept.path.gather(1, kept.n_keep[:, None] - 1)[:, 0]
        length = batch.positions[sampled.row + last] + 1
        self.store.note(sampled.slot, kept.next, length)

    # -- behind a step ------------------------------------------------------------------------

    def buffers(self, lanes: int, *, stages: int = 1) -> DraftBuffers:
        plan = self.loaded.plan
        return DraftBuffers(self.state, lanes, plan.block, plan.fill, stages=stages)

    def draft(self, buffers: DraftBuffers) -> None:
        """Propose for the lanes of buffers that are uploaded, and store it by slot."""
        block = buffers.draft_block(self.store)
        proposals = self.loaded.drafter.draft(block, self.state)
        rows, draft_trees = self.loaded.rows, self._draft_trees
        if draft_trees is None:
            self.store.put(block.slots, chains(proposals, rows))
        else:
            self.store.put(block.slots, trees(proposals, rows, draft_trees))

    def launch(self, lanes: Sequence[Lane]) -> None:
        """Draft for lanes, launch by launch."""
        buffers = self.buffers(len(lanes))
        buffers.put(lanes)
        buffers.upload()
        self._kernel_warmup.before(("draft", len(lanes)), lambda: self.draft(buffers))
        self.draft(buffers)

    def note_failure(self) -> None:
        """Called in an ``except`` block. One traceback says it all; the rest is counted."""
        if not self.failures:
            log.exception("drafter %r failed; going on without its drafts", self.loaded.name)
        self.failures += 1

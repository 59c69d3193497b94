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

import torch

from kinfolk.draft_api import DraftPlan, ModelDrafter, Proposals
from kinfolk.engine.buckets import lane_depth
from kinfolk.engine.draft_buffers import DraftBuffers, Lane
from kinfolk.engine.input_buffers import SampledSequences
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.gguf.file import GGUFFile
from kinfolk.model_api import CommitBatch, Forward, StepBatch
from kinfolk.ops.binding import Ops
from kinfolk.spec.plant import OUTPUT_INVALID, PlantedAcceptance
from kinfolk.spec.proposals import ProposalStore
from kinfolk.spec.trees import Trees, chains, padded, trees
from kinfolk.spec.verify import NO_ROW
from kinfolk.state.state import State
from kinfolk.verify_api import Kept
from kinfolk_kernels.draft_trees.op import DRAFT_TREES, DraftTreesArguments
from kinfolk_kernels.place_drafts.op import PLACE_DRAFTS, PlaceDraftsArguments

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A built drafter. It proposes a chain of ``chain`` tokens or a tree of ``tree`` tokens, 0 =
    never. ``file`` holds its weights, ``None`` if they come from nowhere. ``confidence``: the
    chances of proposed chains are kept for the host. ``planted``: drafts are accepted by draws,
    which makes the output invalid; only for measuring."""

    name: str
    plan: DraftPlan
    drafter: ModelDrafter
    chain: int
    tree: int = 0
    file: GGUFFile | None = None
    confidence: bool = False
    planted: PlantedAcceptance | None = None

    @property
    def rows(self) -> int:
        """Most rows that it proposes for a sequence."""
        return max(self.chain, self.tree)


class Drafting:
    """A drafter on the state of its target, and the proposals for every slot.

    ``failures`` counts calls that raised; the first is logged, and its lanes go on without drafts.
    A drafter is ``broken`` when it could not write its state: nothing is drafted any more.
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
        self.store = ProposalStore(slots, loaded.rows, place, device, chain=loaded.chain)
        self._draft_trees = None
        if loaded.tree:
            # Random weights give trees without depth, in which no length could be planted.
            seeded = loaded.planted is not None
            arguments = DraftTreesArguments(loaded.tree, chain_seeded=seeded, device=device)
            self._draft_trees = ops.bind(DRAFT_TREES, arguments)
        self.failures = 0
        self.broken = False
        self._ops, self._kernel_warmup = ops, kernel_warmup
        if loaded.planted is not None:
            log.warning(OUTPUT_INVALID)

    # -- within a step ------------------------------------------------------------------------

    def place(self, batch: StepBatch) -> None:
        """Fill the drafted rows of a step, before its forward."""
        if batch.layout.traits.draft_rows > 1:
            self.store.place(batch)

    def extend(self, forward: Forward, batch: StepBatch) -> Sequence[Any]:
        """Write the drafter's state for the rows of a step. Returns what the commit needs."""
        if self.broken:
            return ()
        try:
            return self.loaded.drafter.extend(forward.features, batch, self.state)
        except Exception:
            self._give_up()
            return ()

    def commit(self, trace: Sequence[Any], kept: CommitBatch) -> None:
        """Advance the drafter's state along kept rows."""
        if self.broken:
            return
        try:
            self.loaded.drafter.commit(trace, kept, self.state)
            kept.finish()
        except Exception:
            self._give_up()

    def note(self, batch: StepBatch, sampled: SampledSequences, kept: Kept) -> None:
        """Remember what the sampled sequences chose, and behind how many positions."""
        if self._ops.launches_suppressed:
            return  # the path is uninitialised memory: a device faults if it is an index
        last = kept.path.gather(1, kept.n_keep[:, None] - 1)[:, 0]
        length = batch.positions[sampled.row + last] + 1
        self.store.note(sampled.slot, kept.next, length)

    # -- behind a step ------------------------------------------------------------------------

    def buffers(self, lanes: int, *, stages: int = 1) -> DraftBuffers:
        plan = self.loaded.plan
        return DraftBuffers(self.state, lanes, plan, self.depth(lanes), stages=stages)

    def depth(self, lanes: int) -> int:
        """Tokens, one after another, that are proposed for each of so many lanes."""
        return lane_depth(lanes, self.loaded.plan.depth)

    def draft(self, buffers: DraftBuffers) -> None:
        """Propose for the lanes of buffers that are uploaded, and store it by slot."""
        block = buffers.draft_block(self.store)
        proposals = self.loaded.drafter.draft(block, self.state)
        self.store.put(block.slots, self._drafts(proposals, buffers))
        if self.loaded.confidence:
            chain = min(self.loaded.chain, block.depth)
            chances = proposals.scores[:, :chain, 0].cumsum(1).exp()
            self.store.confidence[block.slots, :chain] = chances

    def _drafts(self, proposals: Proposals, buffers: DraftBuffers) -> Trees:
        """The chains or trees of lanes, as each wants."""
        loaded, draft_trees = self.loaded, self._draft_trees
        best = None if draft_trees is None else trees(proposals, loaded.tree, draft_trees)
        if not loaded.chain:
            assert best is not None, "a drafter proposes chains or trees"
            return best
        chain = chains(proposals, min(loaded.chain, buffers.depth))
        chain = padded(chain[0], loaded.rows, 0), padded(chain[1], loaded.rows, NO_ROW), chain[2]
        if best is None:
            return chain
        wanted = buffers.wants_tree > 0
        tokens, parents = (
            torch.where(wanted[:, None], padded(tree, loaded.rows, nothing), row)
            for tree, row, nothing in zip(best[:2], chain[:2], (0, NO_ROW), strict=True)
        )
        return tokens, parents, torch.where(wanted, best[2], chain[2])

    def launch(self, lanes: Sequence[Lane]) -> None:
        """Draft for lanes, launch by launch."""
        buffers = self.buffers(len(lanes))
        buffers.put(lanes)
        buffers.upload()
        self._kernel_warmup.before(("draft", len(lanes)), lambda: self.draft(buffers))
        self.draft(buffers)

    def confidence(self, slots: Sequence[int]) -> list[list[float]]:
        """The chances of the paths of what is proposed for slots. Waits for the draft."""
        chances: list[list[float]] = self.store.confidence[list(slots)].tolist()
        return chances

    def _give_up(self) -> None:
        """Called in an ``except`` block."""
        self.note_failure()
        self.broken = True

    def note_failure(self) -> None:
        """Called in an ``except`` block. One traceback says it all; the rest is counted."""
        if not self.failures:
            log.exception("drafter %r failed; going on without its drafts", self.loaded.name)
        self.failures += 1

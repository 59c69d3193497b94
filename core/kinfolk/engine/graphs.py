"""Steps of a few fixed sizes, each recorded once and replayed: decoding and verification.

A step is padded to the next bucket. What a recording depends on is its key; lengths, positions,
slots, tables and parameters of sampling are in buffers, so one recording serves every context.
Prompts are read in steps of their own size, as are steps for which there is no bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kinfolk.engine.batch import fill, fill_single_rows, send_changes
from kinfolk.engine.capture import Capture
from kinfolk.engine.frame import BucketShape, InputBuffers, LaunchTraits, SampledSequences
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel
from kinfolk.engine.sampled import SampledItems
from kinfolk.engine.step import report, sample_and_commit
from kinfolk.errors import EngineError
from kinfolk.model_api import Forward, GraphShape, StepBatch
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.spec.penalties import PenaltyState
from kinfolk.spec.sampling import RowSampling, SamplingKind, fill_parameters
from kinfolk.state.state import State

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
SEQUENCES = (1, 2, 4, 8, 16, 24, 32)
WIDTHS = (4, 16, 64)
"""Rows of a drafted sequence. Kernels take up to 16 of them at once, and go on from there."""


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a recording depends on. ``width`` is the most rows of a drafted sequence, 1 = nothing is
    drafted; ``sampling`` what is recorded behind the logits, if anything is."""

    kind: Literal["decode", "verify"]
    rows: int
    sequences: int
    width: int
    trees: bool
    sampling: SamplingKind | None

    @property
    def traits(self) -> LaunchTraits:
        counts = tuple(range(1, self.width + 1))
        return LaunchTraits(True, self.width if self.kind == "verify" else 0, self.trees, counts)

    @property
    def sizes(self) -> BucketShape:
        # Where sequences have several rows, padding rows need one of their own.
        sequences = self.sequences + (self.kind == "verify")
        return BucketShape(self.rows, sequences, sequences, self.rows, few=sequences)


@dataclass(frozen=True, slots=True)
class DeviceOutputs:
    """What a step leaves on the device. Sampled: ``packed`` for ``StepOutputs.read`` with so many
    sequences and lanes. Otherwise the step up to its logits, and its real lanes."""

    packed: torch.Tensor
    sequences: int
    lanes: int
    batch: StepBatch
    forward: Forward | None
    logits: torch.Tensor | None
    real: SampledSequences | None = None


@dataclass(slots=True)
class _Graph:
    frame: InputBuffers
    replay: Callable[[], DeviceOutputs]


class Graphs:
    """The recordings of one model on one state.

    ``least``: no bucket for fewer sequences is used, so that no row's numbers depend on how many
    others there are.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        state: State,
        capture: Capture,
        kernel_warmup: KernelWarmup,
        *,
        least: int = 1,
    ) -> None:
        self.loaded, self.state, self.capture = loaded, state, capture
        self.kernel_warmup = kernel_warmup
        self.captures = self.replays = self.uploads = 0
        self.refused: dict[str, str] = {}
        """What no graph can hold, and why: if there is anything, every step runs eagerly."""
        self._graphs: dict[GraphKey, _Graph] = {}
        self._penalties: PenaltyState | None = None
        self._least = least

    def key(self, items: Sequence[Item], sampling: SamplingKind | None) -> GraphKey | None:
        """The bucket that a step fits into; ``None`` if it must run in its own size."""
        if self.refused or any(i.kind is ItemKind.PREFILL or i.stores for i in items):
            return None
        drafted = [len(item.tokens) for item in items if item.kind is ItemKind.VERIFY]
        sequences = _bucket(len(items), SEQUENCES, self._least)
        if not drafted:
            if sequences is None:
                return None
            return GraphKey("decode", sequences, sequences, 1, False, sampling)
        rows = _bucket(sum(len(item.tokens) for item in items), ROWS, self._least)
        width = _bucket(max(drafted), WIDTHS)
        if rows is None or sequences is None or width is None:
            return None
        trees = any(item.parents is not None for item in items)
        return GraphKey("verify", rows, sequences, width, trees, sampling)

    def run(
        self,
        key: GraphKey,
        items: Sequence[Item],
        sampled: SampledItems,
        tokens: torch.Tensor | None = None,
    ) -> DeviceOutputs:
        """Fill the buffers of a bucket, and replay. Raises :class:`EngineError`, with nothing
        changed, if a step cannot be recorded; no other is tried then. ``tokens`` int64 of each row,
        on the device, if the host does not know them yet."""
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture_graph(key)
            except EngineError as error:
                if not self.refused:
                    self.refused["step"] = str(error)
                log.warning("steps are not recorded, so each takes longer: %s", error)
                raise
        graph = self._graphs[key]
        frame = graph.frame
        frame.clear()
        frame.put_changes(send_changes(self.state))
        if frame.single_rows:
            fill_single_rows(frame, items)
        else:
            fill(frame, items)
        if key.sampling is not None and not (key.sampling.greedy and not key.sampling.edited):
            fill_parameters(frame.host, sampled.parameters())
            if key.sampling.edited:
                for lane, item, (row,) in sampled.lanes():
                    try:
                        self.penalties.enter(item.lease.slot, row)
                    except Exception as error:
                        sampled.fail(lane, error)
        ran = self.replay(graph, tokens)
        if key.sampling is None:
            drafted = [len(item.tokens) for item in items if item.kind is ItemKind.VERIFY]
            lanes = frame.lanes(key.traits, len(items), max(drafted, default=1))
            ran = DeviceOutputs(ran.packed, 0, 0, ran.batch, ran.forward, ran.logits, lanes)
        return ran

    @property
    def penalties(self) -> PenaltyState:
        """What was said in each slot, from the first step on that asks for it."""
        if self._penalties is None:
            slots, vocabulary = self.state.limits.slots + 1, self.loaded.info.vocabulary
            self._penalties = PenaltyState(slots, vocabulary, self.state.device)
        return self._penalties

    def forget(self, slots: Iterable[int]) -> None:
        """No recording hears of the tokens that a step chooses in ``slots``."""
        if self._penalties is not None:
            self._penalties.forget(slots)

    def replay(self, graph: _Graph, tokens: torch.Tensor | None = None) -> DeviceOutputs:
        """From here to the report the host neither waits nor looks at anything."""
        graph.frame.transfer.upload()
        if tokens is not None:
            graph.frame.device["tokens"][: tokens.shape[0]].copy_(tokens)
        self.uploads += 1
        self.replays += 1
        return graph.replay()

    # -- recording ----------------------------------------------------------------------------

    def _capture_graph(self, key: GraphKey) -> _Graph:
        frame = InputBuffers(self.state, key.sizes, single_rows=key.kind == "decode", stages=2)
        body = self._body(key, frame)
        frame.transfer.upload()  # warmups must find padding
        if key.sampling is None or not key.sampling.edited:
            self.kernel_warmup.before(key, body)
        with self.loaded.ops.watched() as used:
            replay = self.capture.capture(self._checked(body, used))
        self.captures += 1
        log.info("recorded %s", key)
        return _Graph(frame, replay)

    def _checked(
        self, body: Callable[[], DeviceOutputs], used: set[tuple[str, str]]
    ) -> Callable[[], DeviceOutputs]:
        """The body, which stops as soon as it is known that no graph can hold it."""

        def run() -> DeviceOutputs:
            ran = body()
            if self.state.device.type == "cuda":
                self.refused.update(self.loaded.ops.not_capturable(used))
                if self.refused:
                    raise EngineError("; ".join(f"{k}: {v}" for k, v in self.refused.items()))
            return ran

        return run

    def _body(self, key: GraphKey, frame: InputBuffers) -> Callable[[], DeviceOutputs]:
        loaded, state, traits = self.loaded, self.state, key.traits
        shape = GraphShape(key.kind, key.rows, key.sequences)
        step_fn = loaded.hooks.build_graph(loaded.model, shape)
        sizes = key.sizes

        def body() -> DeviceOutputs:
            frame.enter_changes()
            batch = frame.batch(traits, full_width=True)
            forward = step_fn(batch, state)
            logits = loaded.model.head(forward.hidden)
            if key.sampling is None:
                packed = report(loaded, batch, forward)
                return DeviceOutputs(packed, sizes.sequences, 0, batch, forward, logits)
            lanes = frame.lanes(traits)
            edits = self.penalties.of(lanes.slot) if key.sampling.edited else None
            packed = sample_and_commit(
                loaded,
                state,
                batch,
                lanes,
                forward,
                logits,
                RowSampling.over(frame.device, key.sampling, edits, loaded.step_ops.sample),
                drafts=key.kind == "verify",
            )
            return DeviceOutputs(packed, sizes.sequences, sizes.lanes, batch, None, None)

        return body


def _bucket(size: int, sizes: Sequence[int], least: int = 1) -> int | None:
    """The smallest bucket for ``size``, and for ``least``; ``None`` if there is none."""
    return next((bucket for bucket in sizes if bucket >= max(size, least)), None)

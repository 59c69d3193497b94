"""A second model: it reads texts in slices, beside the steps of the first, and scores their tokens.
It has state of its own: for one text at a time, or for each sequence whose chunks it scores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch

from kinfolk.compress.options import CompressionOptions
from kinfolk.engine.executor import MAX_WARMUP_SIZE_LOG2
from kinfolk.engine.failures import explain
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import LoadedModel, ModelSource, Progress, SharedWeights
from kinfolk.engine.memory import WEIGHTS
from kinfolk.engine.preparing import Prepared, choose_device, prepare_model, usable_memory
from kinfolk.engine.sizing import DEFAULT_CONTEXT, GIB
from kinfolk.engine.text import open_text
from kinfolk.errors import EngineError, SettingsError
from kinfolk.gguf.file import GGUFFile
from kinfolk.model_api import GraphShape, Model
from kinfolk.nn.prompt_reading import SCORING_ROWS, PromptReading
from kinfolk.registry import Registry
from kinfolk.residency.options import chunk_drafter
from kinfolk.sched.limits import ScoringLimits
from kinfolk.sched.plan import ReadingResult, ReadingSlice
from kinfolk.sched.prompt_scoring import PromptScoring, ScorerFacts
from kinfolk.settings import Settings
from kinfolk.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SCORED_POSITIONS: Final = 16384
"""Most tokens of a text that are read at once, whatever the model supports: its keys and values
stay on the device. A longer text is read in parts."""

FLOAT_BYTES: Final = 4

PROMPTS_OPTION: Final = "--prefill-compression-drafter"
CHUNKS_OPTION: Final = "--kvflash-drafter"

WAITING_TEXTS: Final = 1024
"""Most texts that wait to be scored."""


@dataclass(frozen=True, slots=True)
class PendingReading:
    """A launched slice: ``values`` are scores on their way to the host, valid after ``ready``."""

    planned: ReadingSlice
    values: torch.Tensor | None = None
    ready: Callable[[], object] = lambda: None
    error: str | None = None

    def collect(self) -> ReadingResult:
        """Wait for the slice, if it is the last one of its text."""
        item, error, scores = self.planned.item, self.error, None
        if self.values is not None:
            self.ready()
            scores = self.values.numpy().astype(np.float32, copy=False)
            if not np.isfinite(scores).all():
                scores, error = None, "a score is not a finite number"
        return ReadingResult(item.request_id, scores, error, item.model)


class PromptScorer:
    """A loaded model that scores the tokens of texts, and its state.

    ``tokenizer`` is that of its file, ``option`` the one that named it. Raises
    :class:`SettingsError` if the model has no layer that attends to all of a text.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        reading: PromptReading,
        tokenizer: Tokenizer,
        option: str = PROMPTS_OPTION,
    ) -> None:
        if not reading.layers:
            raise SettingsError(
                f"{loaded.file.path}: family {loaded.family.name!r} cannot score prompts, as none "
                f"of its layers attends to all positions; name another model with {option}"
            )
        self.loaded, self.reading, self.tokenizer = loaded, reading, tokenizer
        self.kv_cache, self.state = loaded.new_state()
        self._warmup = KernelWarmup(loaded.ops, loaded.device)
        self._has_failed = False
        self._there = 0

    @classmethod
    def open(
        cls,
        path: Path,
        settings: Settings,
        registry: Registry,
        progress: Progress | None = None,
        *,
        chunks: bool = False,
        beside: PromptScorer | None = None,
    ) -> PromptScorer:
        """Load the model of a file, to score the tokens of prompts, or the ``chunks`` of sequences.
        If the model ``beside`` is of the same file, both have its weights. Raises as
        :func:`kinfolk.engine.preparing.prepare_model` does."""
        first = None if beside is None or not beside.is_of(path) else beside.loaded.source
        planned = None if first is None else first.ready
        own = _own_settings(path, settings, registry, planned, chunks=chunks)
        there = 0 if first is None else first.ready.memory.parts[WEIGHTS]
        ready = prepare_model(path, own, registry, there=there)
        # Slices of a text whose end is not known attend to all keys.
        reading = PromptReading(sparse=not chunks)
        shared = SharedWeights() if first is None or first.shared is None else first.shared
        source = ModelSource(
            ready, graphs=False, batch_invariant=False, reading=reading, shared=shared
        )
        option = CHUNKS_OPTION if chunks else PROMPTS_OPTION
        scorer = cls(source.load(progress), reading, open_text(path, own, registry)[0], option)
        scorer._there = there
        return scorer

    def is_of(self, path: Path) -> bool:
        """Whether it was loaded from a file."""
        return self.loaded.source is not None and self.loaded.file.path.resolve() == path.resolve()

    @property
    def facts(self) -> ScorerFacts:
        return ScorerFacts(self.loaded.limits.context)

    @property
    def nbytes(self) -> int:
        """Bytes of the device that it was planned with, without weights of a model beside it."""
        source = self.loaded.source
        return 0 if source is None else _nbytes(source.ready) - self._there

    @property
    def limits(self) -> ScoringLimits:
        """What it can read."""
        loaded = self.loaded
        return ScoringLimits(
            context=loaded.limits.context,
            slice=loaded.slice_rows,
            least=SCORING_ROWS,
            vocabulary=loaded.info.vocabulary,
            waiting=WAITING_TEXTS,
        )

    def books(self) -> PromptScoring:
        """What plans its items, if it scores the tokens of texts."""
        return PromptScoring(self.limits, self.kv_cache)

    def launch(self, planned: ReadingSlice) -> PendingReading:
        """Launch a slice; the host does not wait. An error is that of its text alone."""
        try:
            return self._launch(planned)
        except (Exception, SystemExit) as error:
            log.log(
                logging.DEBUG if self._has_failed else logging.ERROR,
                "a slice of a text that is to be scored failed",
                exc_info=True,
            )
            self._has_failed = True
            self.state.forget()
            self.state.block_tables.invalidate()
            return PendingReading(planned, error=explain(error))

    def _launch(self, planned: ReadingSlice) -> PendingReading:
        item = planned.item
        self.state.apply(planned.operations)
        inputs = build_input_batch([item], self.state)
        shape = GraphShape(item.kind.value, item.rows, 1)
        step_fn = self.loaded.hooks.build_graph(self.loaded.model, shape)

        def run() -> None:
            self.reading.begin(item.start, item.rows, planned.length)
            step_fn(inputs.batch, self.state)

        size = min((item.rows - 1).bit_length(), MAX_WARMUP_SIZE_LOG2)
        self._warmup.before((size, item.start > 0, planned.is_last), run)
        run()
        if not planned.is_last:
            return PendingReading(planned)
        scores = self.reading.scores()
        if scores.device.type != "cuda":
            return PendingReading(planned, scores)
        pinned = torch.empty(scores.shape, dtype=scores.dtype, pin_memory=True)
        pinned.copy_(scores, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return PendingReading(planned, pinned, event.synchronize)

    def park(self) -> None:
        """Free weights and state, also for whoever has the same weights. Nothing may be under
        way."""
        self.state.free()
        self.kv_cache.forget_operations()  # of what has ended; with the tables it is gone
        source = self.loaded.source
        if source is not None and source.shared is not None:
            source.shared.free()
        self.loaded = replace(self.loaded, model=cast(Model, None))

    def unpark(self, progress: Progress | None = None) -> None:
        """Load what was freed again."""
        source = self.loaded.source
        if source is None:
            raise EngineError("the model that scores prompts was not loaded from a file")
        self.state.allocate()
        read = source.load(progress, drafter=False)
        self.loaded = replace(self.loaded, model=read.model, real_rows=read.real_rows)
        self.state.real_rows = read.real_rows

    def close(self) -> None:
        self.loaded.file.close()


def planned_beside(settings: Settings, registry: Registry) -> tuple[dict[str, int], Settings]:
    """Bytes of the device that models beside the one that answers will take, by what they score,
    and the settings with which that one is planned. Reads no weights."""
    taken, options, chunks = {}, CompressionOptions.of(settings), chunk_drafter(settings)
    usable = usable_memory(choose_device(settings.device), settings.memory)
    first, left = None, settings
    if options is not None:
        own = _own_settings(options.drafter, settings, registry)
        first = _planned(options.drafter, own, registry)
        taken["prompts"] = _nbytes(first)
        left = _with_memory(settings, usable - taken["prompts"])
    if chunks is not None:
        if first is not None and first.file.path.resolve() != chunks.resolve():
            first = None
        own = _own_settings(chunks, left, registry, first, chunks=True)
        there = 0 if first is None else first.memory.parts[WEIGHTS]
        taken["chunks"] = _nbytes(_planned(chunks, own, registry, there)) - there
        left = _with_memory(settings, usable - sum(taken.values()))
    return taken, left


def _with_memory(settings: Settings, nbytes: int) -> Settings:
    return settings.model_copy(update={"memory": max(nbytes, 1) / GIB})


def _own_settings(
    path: Path,
    settings: Settings,
    registry: Registry,
    first: Prepared | None = None,
    *,
    chunks: bool = False,
) -> Settings:
    """The settings of a model that scores prompts: one text at a time, of which nothing is kept. Or
    with ``chunks``: as many sequences of as many positions as the model that answers. ``first``:
    who has the weights too, and so in the same form."""
    context, slots = SCORED_POSITIONS, 1
    if chunks:
        context, slots = settings.context or DEFAULT_CONTEXT, settings.slots
    with GGUFFile.open(path, registry.formats().tensor_types()) as file:
        key = f"{file.metadata.architecture}.context_length"
        if key in file.metadata:
            context = min(context, file.metadata.integer(key))
    return settings.model_copy(
        update={
            "model_family": None,
            "policy": (),
            "slots": slots,
            "context": context,
            "step_tokens": None,
            "checkpoints": 0,
            "cache_memory": 0.0,
            "cache_disk": 0.0,
            "kvflash": "off",
            "kvflash_policy": "qk",
            "kvflash_drafter": None,
            "expert_budget": "all",
            "expert_profile": None,
            "kv_codec": None,
            "v_codec": None,
            "graphs": "off",
            "batch_invariant": False,
            "preempt": False,
            "draft": ("off",),
            "draft_model": None,
            **({} if first is None else {"weights": first.form}),
        }
    )


def _planned(path: Path, own: Settings, registry: Registry, there: int = 0) -> Prepared:
    ready = prepare_model(path, own, registry, there=there)
    ready.file.close()
    return ready


def _nbytes(ready: Prepared) -> int:
    """Bytes of the device of a model that scores, with those of its last look at a text: products,
    shares, and copies of both."""
    metadata = ready.file.metadata
    key = metadata.arch_key("attention.head_count")
    heads = 1
    if key in metadata:
        value = metadata.value(key)
        heads = max(metadata.integers(key)) if value.is_array else metadata.integer(key)
    look = 4 * SCORING_ROWS * heads * ready.memory.limits.context * FLOAT_BYTES
    return ready.memory.total + look

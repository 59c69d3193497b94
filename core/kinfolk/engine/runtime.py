"""The runtime: a loaded model with its engine, tokenizer, chat template and card."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinfolk.compress.options import CompressionOptions
from kinfolk.descriptors import ModelCard
from kinfolk.draft_api import Drafter
from kinfolk.engine.buckets import MAX_VERIFY_ROWS
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.cards import find_card
from kinfolk.engine.disk_tier import open_disk
from kinfolk.engine.engine import Engine
from kinfolk.engine.facts import EngineFacts
from kinfolk.engine.loading import LoadedModel, less_memory, load_model
from kinfolk.engine.preparing_drafters import named_drafters
from kinfolk.engine.prompt_scorer import PromptScorer
from kinfolk.engine.readers import Readers, start_reading
from kinfolk.engine.step_rows import longest_mixed_slice, longest_step
from kinfolk.engine.text import open_text
from kinfolk.errors import SettingsError
from kinfolk.guarded import GuardedDrafter
from kinfolk.model_api import ModelInfo
from kinfolk.registry import Registry
from kinfolk.residency.options import chunk_drafter
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.settings import Settings
from kinfolk.spec.in_order import DraftersInOrder
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tokenizer import Tokenizer

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Runtime:
    """A model that serves text. Close it, or use it as a context manager."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    chat_format: ChatFormat
    card: ModelCard | None
    readers: Readers = field(default_factory=Readers)
    """The models that read beside it."""

    @property
    def scorer(self) -> PromptScorer | None:
        """The model that scores prompts which may be compressed."""
        return self.readers.prompts

    @property
    def loaded(self) -> LoadedModel:
        """The model; without weights while the engine has parked them."""
        return self.engine.loaded

    @property
    def info(self) -> ModelInfo:
        return self.loaded.info

    @property
    def facts(self) -> EngineFacts:
        return self.engine.facts

    @property
    def config(self) -> Any:
        return self.loaded.config

    @classmethod
    def open(
        cls,
        path: Path | None,
        settings: Settings,
        registry: Registry,
        progress: Progress | None = None,
        *,
        keep_profile: bool = True,
    ) -> Runtime:
        """Load a model file, or the bundled model if ``path`` is ``None``. ``keep_profile``: see
        :func:`load_model`."""
        named_drafters(settings, registry)  # refuses an unknown name before anything is read
        chunk_drafter(settings)  # and settings that contradict each other
        path = path or bundled_model(registry)
        with ThreadPoolExecutor(1) as pool:
            # Building a large vocabulary takes as long as loading weights: do both at once.
            text = pool.submit(open_text, path, settings, registry)
            # First, so that the model's plan divides what they leave.
            readers = _readers(settings, registry, progress)
            loaded = load_model(
                *(path, settings, registry, progress),
                beside=readers.nbytes,
                keep_profile=keep_profile,
            )
            tokenizer, chat, chat_format = text.result()
        if readers.chunks is not None:
            readers = replace(readers, start=start_reading(tokenizer, readers.chunks))
        card = find_card(path, loaded.file.metadata, loaded.family)
        limits, disk = scheduler_limits(loaded, settings), open_disk(loaded, settings)
        engine = Engine(loaded, limits, _host_drafter(loaded), disk, readers)
        return cls(loaded.info.name, engine, tokenizer, chat, chat_format, card, readers)

    def close(self) -> None:
        self.engine.close()
        self.loaded.drafters.close(self.loaded.file)
        self.readers.close()
        self.loaded.file.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _readers(settings: Settings, registry: Registry, progress: Progress | None) -> Readers:
    """The models that read beside the one that answers; without the tokens of the latter."""
    options, chunks = CompressionOptions.of(settings), chunk_drafter(settings)
    readers = Readers()
    if options is not None:
        scorer = PromptScorer.open(options.drafter, settings, registry, progress)
        readers = replace(readers, prompts=scorer)
    if chunks is not None:
        left = less_memory(settings, readers.nbytes)
        scorer = PromptScorer.open(
            chunks, left, registry, progress, chunks=True, beside=readers.prompts
        )
        readers = replace(readers, chunks=scorer)
    return readers


def scheduler_limits(loaded: LoadedModel, settings: Settings) -> SchedulerLimits:
    """Raises :class:`SettingsError` for settings that contradict each other."""
    rows = loaded.slice_rows
    if settings.preempt and not loaded.limits.host_bytes:
        raise SettingsError(
            "--preempt needs host memory for the state of requests that go on later: "
            "give it some with --cache-memory"
        )
    return SchedulerLimits(
        slots=loaded.limits.slots,
        context=loaded.limits.context,
        step_tokens=longest_step(settings.step_tokens, rows),
        slice=rows,
        mixed_slice=longest_mixed_slice(
            0 if settings.batch_invariant else settings.mixed_slice, rows
        ),
        quantum=settings.quantum,
        checkpoint_every=settings.checkpoint_every,
        max_queue=settings.max_queue,
        max_draft=loaded.drafters.host_rows,
        host_first=loaded.drafters.host_first,
        vocabulary=loaded.info.vocabulary,
        overlap=not settings.no_overlap,
        preempt=settings.preempt,
        widths=settings.draft_widths if settings.draft_width is None else "fixed",
        draft_width=settings.draft_width,
        verify_rows=MAX_VERIFY_ROWS,
    )


def _host_drafter(loaded: LoadedModel) -> Drafter | None:
    drafters = [
        GuardedDrafter.create(provided.value, provided.source, loaded.info)
        for provided in loaded.drafters.hosts
    ]
    return DraftersInOrder(tuple(drafters)) if len(drafters) > 1 else next(iter(drafters), None)

"""The runtime: a loaded model with its engine, tokenizer, chat template and card."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfolk.descriptors import ModelCard
from kinfolk.draft_api import Drafter
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.cards import find_card
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.text import open_text
from kinfolk.errors import SettingsError
from kinfolk.guarded import GuardedDrafter
from kinfolk.model_api import ModelInfo
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.settings import Settings, flag
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.formats import ChatFormat
from kinfolk.text.tokenizer import Tokenizer

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Runtime:
    """A model that serves text. Close it, or use it as a context manager."""

    name: str
    loaded: LoadedModel
    engine: Engine
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    chat_format: ChatFormat
    card: ModelCard | None

    @property
    def info(self) -> ModelInfo:
        return self.loaded.info

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
    ) -> Runtime:
        """Load a model file, or the bundled model if ``path`` is ``None``."""
        path = path or bundled_model(registry)
        if settings.drafter is not None:
            registry.drafter(settings.drafter)  # refuses an unknown name before weights load
        _check_invariance(settings)
        with ThreadPoolExecutor(1) as pool:
            # Building a large vocabulary takes as long as loading weights: do both at once.
            text = pool.submit(open_text, path, settings, registry)
            loaded = load_model(path, settings, registry, progress)
            tokenizer, chat, chat_format = text.result()
        card = find_card(path, loaded.file.metadata, loaded.family)
        engine = Engine(
            loaded, scheduler_limits(loaded, settings), _drafter(loaded, settings, registry)
        )
        return cls(loaded.info.name, loaded, engine, tokenizer, chat, chat_format, card)

    def close(self) -> None:
        self.engine.close()
        self.loaded.file.close()
        drafter = self.loaded.drafter
        if drafter is not None and drafter.file is not None:
            drafter.file.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scheduler_limits(loaded: LoadedModel, settings: Settings) -> SchedulerLimits:
    rows = loaded.slice_rows
    drafts = settings.drafter is not None and loaded.drafter is None
    return SchedulerLimits(
        slots=loaded.limits.slots,
        context=loaded.limits.context,
        step_tokens=settings.step_tokens or 2 * rows,
        slice=rows,
        quantum=settings.quantum,
        max_draft=settings.draft_tokens if drafts else 0,
        vocabulary=loaded.info.vocabulary,
        overlap=not settings.no_overlap,
        widths=settings.draft_widths,
    )


def _drafter(loaded: LoadedModel, settings: Settings, registry: Registry) -> Drafter | None:
    if settings.drafter is None or loaded.drafter is not None:
        return None
    provided = registry.drafter(settings.drafter)
    return GuardedDrafter.create(provided.value, provided.source, loaded.info)


def _check_invariance(settings: Settings) -> None:
    """A drafted row's numbers depend on the number of rows, which the drafter chooses."""
    for name in ("drafter", "draft_model"):
        if settings.batch_invariant and getattr(settings, name) is not None:
            raise SettingsError(
                f"{flag(name)} {getattr(settings, name)}: nothing can be drafted with "
                "--batch-invariant; leave out one of them"
            )

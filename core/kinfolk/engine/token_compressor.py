"""Token ids compressed by a model that is named with them: loaded when it is asked for, and the
target parked meanwhile if it is to make room."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from kinfolk.compress.passages import PASSAGE_TOKENS, Numbers, select_passages
from kinfolk.compress.scored_text import joined_scores, pieces
from kinfolk.engine.engine import Engine
from kinfolk.engine.failures import explain
from kinfolk.engine.prompt_scorer import PromptScorer
from kinfolk.engine.text import open_text
from kinfolk.errors import EngineError, KinfolkError, RequestError
from kinfolk.registry import Registry
from kinfolk.sched.acceptance import check_tokens
from kinfolk.sched.prompt_scoring import PromptScoring, ScoringRequest
from kinfolk.settings import Settings
from kinfolk.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Between two looks whether somebody who waits for others has been cancelled."""

T = TypeVar("T")


class TokenCompressor:
    """May be used by several threads; one is served after the other, and waits.

    Weights are loaded and slices are read on the engine's thread, between two steps: so other
    requests go on, a step for each slice, and nothing else uses the device meanwhile. A model that
    was loaded beside the target stays until :meth:`free`; where the target was parked for it, it
    makes room before the target comes back. ``tokenizer`` is that of the target.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, settings: Settings, registry: Registry
    ) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._settings, self._registry = settings, registry
        self._lock = threading.Lock()
        self._scorer: PromptScorer | None = None
        self._books: PromptScoring | None = None
        self._parks = False

    @property
    def parks(self) -> bool:
        """Whether it has parked the target, and is going to unpark it."""
        return self._parks

    def compress(
        self,
        path: str,
        tokens: tuple[int, ...],
        ratio: float,
        *,
        park: bool,
        cancelled: threading.Event,
    ) -> tuple[int, ...]:
        """The ``ratio`` of ``tokens`` that the model of ``path`` finds most important, in their
        order; more if words of the question, the last tokens, stand in many places.

        With ``park`` the target is parked first, which needs that no request is live, and unparked
        in any case. Raises :class:`KinfolkError`: for a file that is no model or has other tokens,
        before anything is parked; if the target cannot be loaded again, it stays parked.
        ``cancelled`` is looked at while others are served, before and after the model is loaded and
        before each slice; once it is set, this is an error too.
        """
        with self._alone(cancelled):
            self._check(Path(path), tokens)
            if not park or "target" in self._engine.parked:
                return self._compressed(Path(path), tokens, ratio, cancelled)
            self._parks = True
            try:
                self._engine.park("target")
                try:
                    return self._compressed(Path(path), tokens, ratio, cancelled)
                finally:
                    self._drop()
                    self._engine.unpark("target")
            finally:
                self._parks = False

    def free(self) -> None:
        """Free the model, if one is loaded."""
        with self._lock:
            self._drop()

    @contextmanager
    def _alone(self, cancelled: threading.Event) -> Iterator[None]:
        """Wait until those who came before are served."""
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            _require_wanted(cancelled)
        try:
            _require_wanted(cancelled)
            yield
        finally:
            self._lock.release()

    def _check(self, path: Path, tokens: tuple[int, ...]) -> None:
        check_tokens(tokens, self._tokenizer.vocab_size, "compress")
        own = self._settings.model_copy(update={"model_family": None})
        other = open_text(path, own, self._registry)[0]
        if not self._tokenizer.has_tokens_of(other):
            raise RequestError(
                f"{path}: its vocabulary is not that of the model ({other.vocab_size} and "
                f"{self._tokenizer.vocab_size} tokens), so it cannot score ids; name a model with "
                "the same tokens"
            )

    def _compressed(
        self, path: Path, tokens: tuple[int, ...], ratio: float, cancelled: threading.Event
    ) -> tuple[int, ...]:
        scorer, books = self._loaded(path)
        ids = np.array(tokens, np.int64)
        read = pieces(ids, scorer.facts.context)
        found = [self._scores(scorer, books, text, cancelled) for text, _ in read]
        scores = joined_scores(read, iter(found))
        kept: list[int] = []
        for passage in select_passages(ids, scores, ratio):
            kept += ids[passage * PASSAGE_TOKENS :][:PASSAGE_TOKENS].tolist()
        return tuple(kept)

    def _scores(
        self,
        scorer: PromptScorer,
        books: PromptScoring,
        tokens: tuple[int, ...],
        cancelled: threading.Event,
    ) -> Numbers:
        """The scores of a text that is read at once."""
        _require_wanted(cancelled)
        request = ScoringRequest("compress", tokens)
        books.check(request)
        books.submit(request)

        @torch.inference_mode()
        def read_slice() -> None:
            planned = books.plan()
            if planned is not None:
                books.commit(scorer.launch(planned).collect())

        while books.busy:
            if cancelled.is_set():
                books.cancel(request.id)
                break
            try:
                self._between_steps(read_slice)
            except KinfolkError as error:
                books.fail_all(str(error))
        (event,) = books.take_events()
        _require_wanted(cancelled)
        if event.scores is None:
            raise EngineError(f"{scorer.loaded.file.path}: {event.error}")
        return event.scores

    def _loaded(self, path: Path) -> tuple[PromptScorer, PromptScoring]:
        if self._scorer is not None and self._scorer.loaded.file.path != path:
            self._drop()
        if self._scorer is None or self._books is None:
            try:
                self._scorer = self._between_steps(
                    lambda: PromptScorer.open(path, self._settings, self._registry)
                )
            except KinfolkError:
                self._drop()  # what was loaded of it
                raise
            self._books = self._scorer.books()
        return self._scorer, self._books

    def _drop(self) -> None:
        scorer, self._scorer, self._books = self._scorer, None, None

        def free() -> None:
            if scorer is not None:
                scorer.park()
                scorer.close()
            gc.collect()  # models are freed with their cycles
            if self._engine.loaded.device.type == "cuda":
                torch.cuda.empty_cache()

        self._between_steps(free)

    def _between_steps(self, work: Callable[[], T]) -> T:
        """Do something on the engine's thread. Any other error than ours is one of the engine; none
        has a traceback, which would refer to what is to be freed."""

        def act() -> T:
            try:
                with self._on_device():
                    return work()
            except KinfolkError as error:
                raise error.with_traceback(None) from None
            except Exception as error:
                log.exception("compressing failed")
                why = explain(error)
            raise EngineError(why)

        return self._engine.between_steps(act)

    def _on_device(self) -> AbstractContextManager[object]:
        device = self._engine.loaded.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _require_wanted(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise RequestError("compress: it was cancelled")

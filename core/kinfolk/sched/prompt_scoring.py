"""Texts that a second model reads to score their tokens: its items, planned beside the others.

One text is read at a time, in slices, one a step. So whoever decodes goes on decoding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kinfolk.errors import QueueFull, RequestError
from kinfolk.sched.acceptance import check_tokens
from kinfolk.sched.limits import ScoringLimits
from kinfolk.sched.plan import (
    SCORER_MODEL,
    Item,
    ItemKind,
    ReadingResult,
    ReadingSlice,
    TokenScores,
)
from kinfolk.state.chunks import SlotLease
from kinfolk.state.kv_cache_manager import KVCacheManager


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """A text whose tokens are to be scored, as ids of the scorer's vocabulary."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """The one event of a :class:`ScoringRequest`: a score of each token, or why there is none."""

    request_id: str
    scores: TokenScores | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ScorerFacts:
    """What clients know of a scorer: ``context`` is the number of tokens that it reads at once."""

    context: int


@dataclass(slots=True)
class _Reading:
    request: ScoringRequest
    lease: SlotLease | None = None
    done: int = 0


@dataclass(slots=True)
class PromptScoring:
    """Plans the items of ``SCORER_MODEL``. Not thread-safe: the engine's thread owns it.

    ``kv_cache`` has the state of that model. ``events`` are those that nobody has taken yet.
    """

    limits: ScoringLimits
    kv_cache: KVCacheManager
    events: list[Scored] = field(default_factory=list)
    texts: int = 0
    tokens: int = 0
    failures: int = 0
    _queue: deque[_Reading] = field(default_factory=deque)
    _outstanding: ReadingSlice | None = None

    @property
    def busy(self) -> bool:
        """Whether a text is read or waits."""
        return bool(self._queue)

    def check(self, request: ScoringRequest) -> None:
        """Raise :class:`RequestError` for a text that can never be read; any thread may ask."""
        limits = self.limits
        check_tokens(request.tokens, limits.vocabulary, "prompt")
        if len(request.tokens) > limits.context:
            raise RequestError(
                f"a text of {len(request.tokens)} tokens is to be scored, the scorer reads at most "
                f"{limits.context}"
            )

    def submit(self, request: ScoringRequest) -> None:
        """Queue a text that :meth:`check` accepts. Raises :class:`QueueFull`."""
        if len(self._queue) >= self.limits.waiting:
            raise QueueFull(f"{len(self._queue)} texts wait to be scored, and no more may")
        self._queue.append(_Reading(request))

    def cancel(self, request_id: str) -> None:
        """Give a text up; unknown ids are no fault."""
        for reading in list(self._queue):
            if reading.request.id == request_id:
                self._end(reading, Scored(request_id, error="it was cancelled"))

    def plan(self) -> ReadingSlice | None:
        """The next slice, or ``None`` if there is nothing to read."""
        if not self._queue or self._outstanding is not None:
            return None
        reading = self._queue[0]
        tokens, tables = reading.request.tokens, self.kv_cache.tables
        if reading.lease is None:
            reading.lease = self.kv_cache.open(len(tokens))
        stop = self._stop(reading.done, len(tokens))
        tables.extend(reading.lease, stop)
        item = Item(
            lease=reading.lease,
            request_id=reading.request.id,
            kind=ItemKind.PREFILL,
            tokens=tokens[reading.done : stop],
            start=reading.done,
            sample=False,
            model=SCORER_MODEL,
        )
        self._outstanding = ReadingSlice(item, self.kv_cache.take_operations(), len(tokens))
        return self._outstanding

    def commit(self, result: ReadingResult) -> None:
        """Apply what became of the outstanding slice."""
        planned, self._outstanding = self._outstanding, None
        reading = self._queue[0] if self._queue else None
        if planned is None:
            return
        if reading is not None and reading.lease is not planned.item.lease:
            reading = None  # it was cancelled meanwhile
        if result.error is not None:
            self.failures += 1
            if reading is not None:
                self._end(reading, Scored(reading.request.id, error=result.error))
            # Nobody knows which operations were carried out.
            self.kv_cache.forget_operations()
        if result.error is not None or reading is None:
            return
        reading.done += planned.item.rows
        self.tokens += planned.item.rows
        self.kv_cache.tables.advance(planned.item.lease, reading.done)
        if planned.is_last:
            self.texts += 1
            self._end(reading, Scored(reading.request.id, result.scores))

    def fail_all(self, error: str) -> None:
        """The state on the device is lost: give all texts up."""
        self._outstanding = None
        for reading in list(self._queue):
            self._end(reading, Scored(reading.request.id, error=error))
        self.kv_cache.forget_operations()

    def take_events(self) -> list[Scored]:
        events, self.events = self.events, []
        return events

    def stats(self) -> dict[str, int]:
        return {
            "scored_texts": self.texts,
            "scored_tokens": self.tokens,
            "scoring_failures": self.failures,
        }

    def _stop(self, start: int, length: int) -> int:
        """Where a slice ends: so that enough rows are left for the last one."""
        stop = min(start + self.limits.slice, length)
        left = length - stop
        return stop if left == 0 or left >= self.limits.least else length - self.limits.least

    def _end(self, reading: _Reading, event: Scored) -> None:
        self._queue.remove(reading)
        if reading.lease is not None:
            self.kv_cache.tables.release(reading.lease)
        self.events.append(event)

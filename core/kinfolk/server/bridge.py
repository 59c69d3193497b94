"""Bridge from the thread that delivers events to the event loop, without blocking either."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from kinfolk.engine.answer import AnswerPart, Ended, joined
from kinfolk.engine.generation import Generation
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.sched.events import Event, Usage
from kinfolk.sched.request import FinishReason
from kinfolk.server.errors import ApiError

T = TypeVar("T")
Batch = list[tuple[int, AnswerPart]]
"""(choice, piece) pairs that arrived together; adjacent pieces of a kind are joined."""


class Mailbox:
    """Delivers items from other threads to callbacks on the loop; one wake-up delivers all pending.

    ``post`` may be called from any thread. It never blocks or raises, even if the loop is closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False

    def post(self, deliver: Callable[[T], None], item: T) -> None:
        self._items.append((deliver, item))
        if self._woken:
            return
        self._woken = True
        # The loop is closed after the server has stopped.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Reset first: an item posted meanwhile is either popped below or wakes the loop again.
        self._woken = False
        while self._items:
            deliver, item = self._items.popleft()
            deliver(item)


_TaggedEvent = tuple[int, int, Event]
"""(generation, choice, event)"""


class ActiveRequest:
    """The generations of one HTTP request in flight, read by one task.

    Choice i of generation g has the index ``g * n + i``. ``close`` cancels the generations that
    still run; it must be called on every way out and may be called again. ``started``: the engine
    has taken all of them. ``ends`` are the finished choices, ``failure`` is the exception that
    ended the request early.
    """

    _CHOICES: Final = "all generations of a request have the same number of choices"

    def __init__(
        self,
        generations: Sequence[Generation],
        mailbox: Mailbox,
        on_close: Callable[[], None] = lambda: None,
    ):
        self.generations = tuple(generations)
        self._per_prompt = len(self.generations[0].requests)
        assert all(len(g.requests) == self._per_prompt for g in generations), self._CHOICES
        self._mailbox = mailbox
        self._on_close: Callable[[], None] | None = on_close
        self._inbox: asyncio.Queue[_TaggedEvent | ApiError] = asyncio.Queue()
        self._prefetched: Batch = []
        self.started = False
        self.ends: list[Ended] = []
        self._usages: dict[int, Usage] = {}
        self.failure: Exception | None = None

    def start(self) -> None:
        """Submit all generations. Blocks until the engine has queued them: call it in a thread."""
        for number, generation in enumerate(self.generations):
            generation.start(self._sink(number))
        self.started = True

    def _sink(self, number: int) -> Callable[[int, Event], None]:
        post, put = self._mailbox.post, self._inbox.put_nowait
        return lambda choice, event: post(put, (number, choice, event))

    @property
    def open(self) -> bool:
        return any(generation.open for generation in self.generations)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(generation.prompt.tokens) for generation in self.generations)

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens restored from a checkpoint; ``None`` until a choice has ended."""
        return sum(usage.reused for usage in self._usages.values()) if self._usages else None

    @property
    def completion_tokens(self) -> int:
        """Tokens read so far."""
        return sum(generation.tokens for generation in self.generations)

    @property
    def drafts(self) -> DraftCounts:
        """What became of the drafts of the finished choices."""
        return DraftCounts.total(end.usage.drafts for end in self.ends)

    async def wait_for_first(self, seconds: float) -> None:
        """Return when the first piece has arrived, or after ``seconds``.

        An immediate failure is thus raised, as :class:`ApiError`, before the response has begun.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.open and not self._prefetched:
                    self._prefetched = await self._next()

    async def batches(self) -> AsyncGenerator[Batch]:
        """All pieces in order of arrival. Raises :class:`ApiError` if a generation fails."""
        while self._prefetched or self.open:
            if self._prefetched:
                batch, self._prefetched = self._prefetched, []
            else:
                batch = await self._next()
            if batch:
                yield batch

    def abort(self, error: ApiError) -> None:
        """Make :meth:`batches` raise ``error``."""
        self._inbox.put_nowait(error)

    def close(self) -> None:
        for generation in self.generations:
            generation.cancel()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    async def _next(self) -> Batch:
        """Wait for an event, then read all that are queued."""
        batch: Batch = []
        try:
            self._read(await self._inbox.get(), batch)
            while not self._inbox.empty():
                self._read(self._inbox.get_nowait(), batch)
        except Exception as error:
            self.failure = error
            raise
        return batch

    def _read(self, item: _TaggedEvent | ApiError, batch: Batch) -> None:
        if isinstance(item, ApiError):
            raise item
        number, choice, event = item
        index = number * self._per_prompt + choice
        for piece in self.generations[number].feed(choice, event):
            if isinstance(piece, Ended):
                _raise_failure(piece)
                self.ends.append(piece)
                self._usages.setdefault(number, piece.usage)
            append_part(batch, index, piece)


def _raise_failure(end: Ended) -> None:
    """Raise :class:`ApiError` if the generation failed or was cancelled."""
    if end.reason is FinishReason.ERROR:
        raise ApiError(500, end.error or "the engine failed", code="engine_error")
    if end.reason is FinishReason.CANCELLED:
        raise ApiError(503, "the generation was cancelled", code="cancelled")


def append_part(batch: Batch, index: int, piece: AnswerPart) -> None:
    """Append a piece, or join it to the last one of its choice if that is of the same kind."""
    if not isinstance(piece, Ended):
        for position in range(len(batch) - 1, -1, -1):
            other_index, other = batch[position]
            if other_index != index:
                continue
            whole = joined(other, piece)
            if whole is not None:
                batch[position] = (index, whole)
                return
            break
    batch.append((index, piece))

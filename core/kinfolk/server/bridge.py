"""From the engine's thread to the tasks of the event loop, without either waiting for the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from kinfolk.engine.answer import AnswerPart, Ended, joined
from kinfolk.engine.generation import Generation
from kinfolk.sched.events import Event, Usage
from kinfolk.sched.request import FinishReason
from kinfolk.server.errors import ApiError

T = TypeVar("T")
Batch = list[tuple[int, AnswerPart]]
"""What arrived together: (choice, piece), pieces of the same kind joined."""


class Mailbox:
    """Carries items to callbacks on the loop, with one wake-up for all that has piled up.

    ``post`` is for other threads: it never blocks and never raises, whatever became of the loop.
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
        # The loop is closed when the server is gone, and nobody reads any more.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # In this order an item posted meanwhile is either seen below or wakes the loop again.
        self._woken = False
        while self._items:
            deliver, item = self._items.popleft()
            deliver(item)


_EventOf = tuple[int, int, Event]
"""Generation, choice, event."""


class Live:
    """Generations of one HTTP request, read by one task.

    Choices are numbered through: generation g, choice i is ``g * n + i``. ``close`` cancels what
    still runs; it must be called however the request ends, and may be called again. ``ends`` are
    the choices that have ended, ``failure`` what has ended the request before them.
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
        self._inbox: asyncio.Queue[_EventOf | ApiError] = asyncio.Queue()
        self._ahead: Batch = []
        self.ends: list[Ended] = []
        self._usages: dict[int, Usage] = {}
        self.failure: Exception | None = None

    def start(self) -> None:
        """Submit everything. Waits for the engine to take it: not to be called on the loop."""
        for number, generation in enumerate(self.generations):
            generation.start(self._sink(number))

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
        """Prompt tokens that came from a checkpoint; ``None`` before anything has ended."""
        return sum(usage.reused for usage in self._usages.values()) if self._usages else None

    @property
    def completion_tokens(self) -> int:
        """Tokens read so far."""
        return sum(generation.tokens for generation in self.generations)

    async def wait_for_first(self, seconds: float) -> None:
        """Return when something has arrived, at the latest after ``seconds``.

        What fails at once is thus raised before an answer has begun, as :class:`ApiError`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.open and not self._ahead:
                    self._ahead = await self._next()

    async def batches(self) -> AsyncGenerator[Batch]:
        """Everything in order of arrival. A failed generation raises :class:`ApiError`."""
        while self._ahead or self.open:
            if self._ahead:
                batch, self._ahead = self._ahead, []
            else:
                batch = await self._next()
            if batch:
                yield batch

    def abort(self, error: ApiError) -> None:
        """Make the reader fail with ``error``."""
        self._inbox.put_nowait(error)

    def close(self) -> None:
        for generation in self.generations:
            generation.cancel()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    async def _next(self) -> Batch:
        """Read one event and all that wait behind it."""
        batch: Batch = []
        try:
            self._read(await self._inbox.get(), batch)
            while not self._inbox.empty():
                self._read(self._inbox.get_nowait(), batch)
        except Exception as error:
            self.failure = error
            raise
        return batch

    def _read(self, item: _EventOf | ApiError, batch: Batch) -> None:
        if isinstance(item, ApiError):
            raise item
        number, choice, event = item
        index = number * self._per_prompt + choice
        for piece in self.generations[number].feed(choice, event):
            if isinstance(piece, Ended):
                _check(piece)
                self.ends.append(piece)
                self._usages.setdefault(number, piece.usage)
            _append(batch, index, piece)


def _check(end: Ended) -> None:
    """Raise for an end that is none of the answer's own."""
    if end.reason is FinishReason.ERROR:
        raise ApiError(500, end.error or "the engine failed", code="engine_error")
    if end.reason is FinishReason.CANCELLED:
        raise ApiError(503, "the generation was cancelled", code="cancelled")


def _append(batch: Batch, index: int, piece: AnswerPart) -> None:
    """Add a piece, joined to the last one of its choice if that is of the same kind."""
    if not isinstance(piece, Ended):
        for place in range(len(batch) - 1, -1, -1):
            other_index, other = batch[place]
            if other_index != index:
                continue
            whole = joined(other, piece)
            if whole is not None:
                batch[place] = (index, whole)
                return
            break
    batch.append((index, piece))

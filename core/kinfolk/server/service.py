"""The served model: admission, requests in flight, counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from kinfolk.engine.generation import Generation
from kinfolk.sched.draft_counts import NO_DRAFTS, DraftCounts
from kinfolk.server.bridge import ActiveRequest, Mailbox
from kinfolk.server.errors import ApiError, unavailable
from kinfolk.server.finished import MOST_FINISHED, FinishedAnswer
from kinfolk.server.request_log import ACTIVE_REQUEST

if TYPE_CHECKING:
    from kinfolk.engine.compression import Compressor
    from kinfolk.engine.runtime import Runtime
    from kinfolk.server.options import ServerOptions


class Service:
    """State shared by all routes. Used on the event loop; signal handlers set only ``draining``.

    At most ``capacity`` generations are in flight: ``slots`` running and ``max_queue`` waiting.
    ``compressor``: compresses prompts, if there is a model that scores them. ``recent`` are the
    last finished answers, the newest first.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: ServerOptions,
        slots: int,
        compressor: Compressor | None = None,
    ):
        self.runtime = runtime
        self.compressor = compressor
        self.options = options
        self.capacity = slots + options.max_queue
        self.created = int(time.time())
        self.draining = False
        self.in_flight = 0
        self.finished: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.drafts = NO_DRAFTS
        self.recent: deque[FinishedAnswer] = deque(maxlen=MOST_FINISHED)
        self._released_tokens = 0
        self._active: set[ActiveRequest] = set()
        self._aborted = False
        self._mailbox: Mailbox | None = None

    def check_count(self, prompts: int, choices: int) -> None:
        """Raise :class:`ApiError` 400 for a request of more answers than ``capacity``."""
        if prompts * choices > self.capacity:
            raise ApiError(
                400,
                f"{prompts} prompts with {choices} choices (n) are {prompts * choices} answers in "
                f"one request; this server takes at most {self.capacity}",
                param="prompt" if prompts > self.capacity else "n",
            )

    async def launch(self, request: Request, generations: Sequence[Generation]) -> ActiveRequest:
        """Start the generations of a request. Raises :class:`ApiError` 429 if the queue is full,
        503 if the server is shutting down."""
        count = sum(len(generation.requests) for generation in generations)
        self._require_room(count)
        self.in_flight += count
        active = ActiveRequest(
            generations, self._current_mailbox(), lambda: self._release(active, count)
        )
        self._active.add(active)
        starting = asyncio.ensure_future(run_in_threadpool(active.start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            # A client that leaves ends the wait, not the thread: what that starts is closed then.
            if starting.done():
                active.close()
            else:
                starting.add_done_callback(lambda _: active.close())
            raise
        setattr(request.state, ACTIVE_REQUEST, active)
        if self._aborted:
            active.abort(_shutting_down())
        return active

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count a request as in flight while its prompt is being compressed. Raises as
        :meth:`launch` does."""
        self._require_room(1)
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def _require_room(self, count: int) -> None:
        if self.draining:
            raise _shutting_down()
        if self.in_flight + count > self.capacity:
            raise ApiError(
                429,
                f"the queue is full: {self.in_flight} of {self.capacity} generations in flight",
                code="queue_full",
                retry_after=1,
            )

    def _current_mailbox(self) -> Mailbox:
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def _release(self, active: ActiveRequest, count: int) -> None:
        self._active.discard(active)
        self.in_flight -= count
        self._released_tokens += active.completion_tokens
        if active.started and active.open:
            self.finished["disconnected"] += 1

    def record(self, active: ActiveRequest) -> None:
        """Add the finished answers of a request to the counters."""
        for end in active.ends:
            self.finished[end.reason.value] += 1
            self.tokens["generated"] += end.tokens
            self.tokens["reasoning"] += end.reasoning_tokens
            self.recent.appendleft(FinishedAnswer.of(end))
        self.drafts = DraftCounts.total((self.drafts, active.drafts))
        if active.ends:
            self.tokens["prompt"] += active.prompt_tokens
            self.tokens["cached"] += active.cached_tokens or 0

    @property
    def generated(self) -> int:
        """Tokens generated so far, also those of running answers."""
        running = sum(active.completion_tokens for active in self._active)
        return self._released_tokens + running

    @property
    def requests(self) -> int:
        """The number of requests in flight."""
        return len(self._active)

    def abort_all(self) -> None:
        """End every request in flight, and later ones, with error 503 ``draining``."""
        self._aborted = True
        for active in list(self._active):
            active.abort(_shutting_down())


def _shutting_down() -> ApiError:
    return unavailable("the server is shutting down", "draining")

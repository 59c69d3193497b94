"""The model being served, and the book of what is in flight."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from kinfolk.engine.generation import Generation
from kinfolk.server.bridge import Live, Mailbox
from kinfolk.server.errors import ApiError, unavailable
from kinfolk.server.request_log import LIVE

if TYPE_CHECKING:
    from kinfolk.engine.runtime import Runtime
    from kinfolk.server.options import ServerOptions


class Service:
    """State shared by all routes. Lives on the event loop; only ``draining`` is set elsewhere.

    ``capacity`` generations may be in flight: those with a slot and those that wait for one.
    """

    def __init__(self, runtime: Runtime, options: ServerOptions, slots: int):
        self.runtime = runtime
        self.options = options
        self.capacity = slots + options.max_queue
        self.created = int(time.time())
        self.draining = False
        self.in_flight = 0
        self.finished: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._live: set[Live] = set()
        self._cut_off = False
        self._mailbox: Mailbox | None = None

    def check_count(self, prompts: int, choices: int) -> None:
        """Raise :class:`ApiError` for a request that asks for more than could ever be in flight."""
        if prompts * choices > self.capacity:
            raise ApiError(
                400,
                f"{prompts} prompts with {choices} choices (n) are {prompts * choices} answers in "
                f"one request, this server takes at most {self.capacity}",
                param="prompt" if prompts > self.capacity else "n",
            )

    async def launch(self, request: Request, generations: Sequence[Generation]) -> Live:
        """Start the generations of a request, or raise :class:`ApiError` if there is no room."""
        if self.draining:
            raise _leaving()
        wanted = sum(len(generation.requests) for generation in generations)
        if self.in_flight + wanted > self.capacity:
            raise ApiError(
                429,
                f"the queue is full: {self.in_flight} of {self.capacity} generations in flight",
                code="queue_full",
                retry_after=1,
            )
        self.in_flight += wanted
        live = Live(generations, self._current_mailbox(), lambda: self._release(live, wanted))
        self._live.add(live)
        try:
            await run_in_threadpool(live.start)
        except BaseException:
            live.close()
            raise
        setattr(request.state, LIVE, live)
        if self._cut_off:
            live.abort(_leaving())
        return live

    def _current_mailbox(self) -> Mailbox:
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def _release(self, live: Live, count: int) -> None:
        self._live.discard(live)
        self.in_flight -= count
        if live.open:
            self.finished["disconnected"] += 1

    def record(self, live: Live) -> None:
        """Count the answers of a request that have ended."""
        for end in live.ends:
            self.finished[end.reason.value] += 1
            self.tokens["generated"] += end.tokens
            self.tokens["reasoning"] += end.reasoning_tokens
            self.tokens["drafted"] += end.usage.drafted
            self.tokens["accepted"] += end.usage.accepted
        if live.ends:
            self.tokens["prompt"] += live.prompt_tokens
            self.tokens["cached"] += live.cached_tokens or 0

    @property
    def requests(self) -> int:
        """Requests whose answers run or wait."""
        return len(self._live)

    def abort_all(self) -> None:
        """End what is still running with an error its clients can understand."""
        self._cut_off = True
        for live in list(self._live):
            live.abort(_leaving())


def _leaving() -> ApiError:
    return unavailable("the server is shutting down", "draining")

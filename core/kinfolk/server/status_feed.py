"""The status for those who watch it: asked of the engine once for all of them, and only while there
are some."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from kinfolk.errors import EngineError
from kinfolk.server.errors import ApiError, unavailable
from kinfolk.server.speeds import RequestSpeeds, SpeedHistory
from kinfolk.server.sse import cancelled, event
from kinfolk.server.status import status_of

if TYPE_CHECKING:
    from kinfolk.server.service import Service

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 0.25
"""Time between two looks at the engine."""

MOST_LISTENERS: Final = 32


class StatusFeed:
    """Used on the event loop. A listener gets the newest status when it is ready for it, so one
    that reads slowly misses some and delays nobody."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._speeds, self._history = RequestSpeeds(), SpeedHistory()
        self._listeners = 0
        self._watching: asyncio.Future[None] | None = None
        self._news: Any = None
        self._version = 0
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def listeners(self) -> int:
        return self._listeners

    async def status(self) -> dict[str, Any]:
        """The status of now, as soon as the engine's running step is over. Raises
        :class:`ApiError` 503 if the engine has stopped."""
        try:
            overview = await asyncio.wrap_future(self._service.runtime.engine.overview())
        except EngineError as error:
            raise unavailable(str(error), "engine_stopped") from None
        now = time.monotonic()
        self._speeds.add(now, overview.requests)
        computed = overview.counters.get("prefill_rows", 0)
        self._history.add(now, self._service.generated, computed)
        found = status_of(self._service, overview, self._speeds, self._history)
        return {"time": round(time.time(), 1), **found, "speeds": self._history.speeds(now)}

    def listen(self) -> AsyncGenerator[bytes]:
        """Events: the status, and again when it has changed, until :meth:`close`. The listener
        counts until :meth:`leave`. Raises :class:`ApiError` 503 if there are too many."""
        if self._closed:
            raise unavailable("the server is shutting down", "draining")
        if self._listeners >= MOST_LISTENERS:
            raise unavailable(f"{MOST_LISTENERS} pages watch this server already")
        self._listeners += 1
        return self._events()

    def leave(self) -> None:
        """A listener has gone; with the last one the engine is left alone."""
        self._listeners -= 1
        if not self._listeners and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def close(self) -> None:
        """End all events."""
        self._closed = True
        watching, self._watching = self._watching, None
        if watching is not None:
            await cancelled(watching)
        self._announce()

    async def _events(self) -> AsyncGenerator[bytes]:
        if self._watching is None or self._watching.done():
            self._news = None
            self._watching = asyncio.ensure_future(self._watch())
        watching, seen = self._watching, -1
        while not (self._closed or watching.done()):
            changed = self._changed
            if self._news is not None and seen != self._version:
                seen = self._version
                yield event(self._news)
            else:
                await changed.wait()

    async def _watch(self) -> None:
        """Look at the engine until nobody listens; if it has stopped, so do all events."""
        try:
            while True:
                news = await self.status()
                if self._news is None or _differ(news, self._news):
                    self._news = news
                    self._version += 1
                    self._announce()
                await asyncio.sleep(PERIOD_SECONDS)
        except ApiError as error:
            log.debug("no more status: %s", error)
        except Exception:
            log.exception("the status could not be told")
        finally:
            self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one | {"time": 0} != other | {"time": 0}

"""Server-sent events with pings, disconnect detection and a write timeout.

Three things must hold at once: a disconnect is noticed while nothing is sent (during a long
prefill), a stalled reader times out, and every way out closes the source, which cancels its
generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kinfolk.server.encoding import encode_json

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"


def event(data: Any) -> bytes:
    """One event with ``data`` as JSON."""
    return b"data: " + encode_json(data) + b"\n\n"


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected. The body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends the chunks of ``source``, and a comment after every ``ping_after`` seconds of silence.

    ``close`` is called on every way out: the end of the source, a disconnect, a write that takes
    longer than ``write_timeout`` seconds, a cancellation. A ``finally`` in the source would not do:
    it does not run if the generator was never started.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        close: Callable[[], None],
        ping_after: float = 15.0,
        write_timeout: float = 30.0,
    ):
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(status_code=200, headers=headers)
        # The base class set the length of an empty body.
        del self.headers["content-length"]
        self.source = source
        self.close = close
        self.ping_after = ping_after
        self.write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # One task writes and one watches it. A timeout or a task for each chunk would take as long
        # as the chunk itself.
        writer = _Writer(send)
        tasks = [
            asyncio.ensure_future(self._send_all(writer)),
            asyncio.ensure_future(self._watch(writer)),
            asyncio.ensure_future(until_disconnect(receive)),
        ]
        sending, watching, _ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (sending, watching):
                if task.done():
                    task.result()
        finally:
            self.close()
            for task in tasks:
                await cancelled(task)
            await self.source.aclose()

    async def _send_all(self, writer: _Writer) -> None:
        # A disconnected client is a normal end of a stream, not a server error.
        with suppress(OSError):
            await writer.write(
                {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            )
            async with aclosing(self.source) as chunks:
                async for chunk in chunks:
                    await writer.write(
                        {"type": "http.response.body", "body": chunk, "more_body": True}
                    )
            await writer.write({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, writer: _Writer) -> None:
        """Send a comment after each silence; return when a write takes too long: a reader that has
        stalled is a normal end of a stream too."""
        clock = asyncio.get_running_loop().time
        with suppress(OSError, TimeoutError):
            while True:
                if writer.writing:
                    left = writer.since + self.write_timeout - clock()
                    if left <= 0:
                        return
                else:
                    left = writer.since + self.ping_after - clock()
                    if left <= 0 and writer.begun:
                        async with asyncio.timeout(self.write_timeout):
                            await writer.write(
                                {"type": "http.response.body", "body": PING, "more_body": True}
                            )
                        continue
                await asyncio.sleep(max(0.001, min(left, self.write_timeout)))


class _Writer:
    """Sends messages one at a time; ``since``: when the last one was begun or, if none is being
    written, ended."""

    def __init__(self, send: Send):
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._turn = asyncio.Lock()
        self.writing = self.begun = False
        self.since = self._clock()

    async def write(self, message: Message) -> None:
        async with self._turn:
            self.writing, self.since = True, self._clock()
            try:
                await self._send(message)
            finally:
                self.writing, self.since, self.begun = False, self._clock(), True


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, so that nothing runs after the response."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})

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
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(until_disconnect(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self.close()
            await cancelled(sending)
            await cancelled(gone)
            await self.source.aclose()

    async def _send_all(self, send: Send) -> None:
        async def write(message: Message) -> None:
            async with asyncio.timeout(self.write_timeout):
                await send(message)

        # A disconnected or stalled client is a normal end of a stream, not a server error.
        with suppress(OSError, TimeoutError):
            await write({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(with_pings(self.source, self.ping_after)) as chunks:
                async for chunk in chunks:
                    await write({"type": "http.response.body", "body": chunk, "more_body": True})
            await write({"type": "http.response.body", "body": b"", "more_body": False})


async def with_pings(source: AsyncGenerator[bytes], after: float) -> AsyncGenerator[bytes]:
    """``source``, with a comment after every ``after`` seconds of silence."""
    while True:
        pending = asyncio.ensure_future(anext(source, None))
        try:
            while not (await asyncio.wait({pending}, timeout=after))[0]:
                yield PING
        finally:
            await cancelled(pending)
        chunk = pending.result()
        if chunk is None:
            return
        yield chunk


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, so that nothing runs after the response."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})

"""Server-sent events: a stream that pings while silent and notices a client that is gone.

Written out because three things have to hold at once: a disconnect is seen while nothing is being
sent (a long prompt is read in silence), a reader that stalls is given up on, and whatever happens
the source is closed, which cancels its generation.
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
    """Return when the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what ``source`` yields; a comment after every ``ping_after`` seconds of silence.

    ``close`` is called on every way out: the end of the source, a disconnect, a write that makes no
    progress for ``write_timeout`` seconds, a cancellation. The source alone could not see to it: a
    generator that was never started has nothing to clean up.
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
        # A stream has no length; the base class counted an empty body.
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

        # A client that is gone or stalls is the normal end of a stream, not a fault of the server.
        with suppress(OSError, TimeoutError):
            await write({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(with_pings(self.source, self.ping_after)) as chunks:
                async for chunk in chunks:
                    await write({"type": "http.response.body", "body": chunk, "more_body": True})
            await write({"type": "http.response.body", "body": b"", "more_body": False})


async def with_pings(source: AsyncGenerator[bytes], after: float) -> AsyncGenerator[bytes]:
    """``source`` with a comment whenever it is silent for ``after`` seconds."""
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
    """Cancel what has not ended, and wait for it, so that nothing runs on after the answer."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})

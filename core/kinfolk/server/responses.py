"""How routes answer: a stream of events, or one body once everything is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from kinfolk.engine.answer import AnswerPart
from kinfolk.server.encoding import encode_json
from kinfolk.server.errors import ApiError, from_exception
from kinfolk.server.sse import DONE, EventStream, cancelled, event, until_disconnect

if TYPE_CHECKING:
    from kinfolk.server.bridge import Batch, Live
    from kinfolk.server.service import Service

logger = logging.getLogger(__name__)


def json_response(data: Any, status: int = 200) -> Response:
    return Response(encode_json(data), status, media_type="application/json")


async def stream(
    service: Service, live: Live, chunks: Callable[[Batch], list[Any]], last: Callable[[], Any]
) -> Response:
    """Answer with events: ``chunks`` of each batch, then ``last`` if it is something.

    What fails before the first event is raised, so that it is answered with a status of its own.
    """
    try:
        await live.wait_for_first(service.options.headers_after)
    except BaseException:
        live.close()
        raise

    async def source() -> AsyncGenerator[bytes]:
        try:
            async with aclosing(live.batches()) as batches:
                async for batch in batches:
                    yield b"".join(map(event, chunks(batch)))
            final = last()
            if final is not None:
                yield event(final)
        except Exception as error:
            yield event(_told(error).body())
        service.record(live)
        yield DONE

    options = service.options
    return EventStream(source(), live.close, options.ping_after, options.write_timeout)


async def collect(
    request: Request, service: Service, live: Live, take: Callable[[int, AnswerPart], None]
) -> bool:
    """Give every piece to ``take``; false if the client left before the end."""

    async def read() -> None:
        async with aclosing(live.batches()) as batches:
            async for batch in batches:
                for index, piece in batch:
                    take(index, piece)
        service.record(live)

    reading = asyncio.ensure_future(read())
    gone = asyncio.ensure_future(until_disconnect(request.receive))
    try:
        await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return False
        reading.result()
        return True
    finally:
        await cancelled(reading)
        await cancelled(gone)
        live.close()


def _told(error: Exception) -> ApiError:
    """The error for the client; one that is a fault of ours also goes to the log."""
    told = from_exception(error)
    if told is not error and told.status >= 500:
        logger.error("a stream failed", exc_info=error)
    return told

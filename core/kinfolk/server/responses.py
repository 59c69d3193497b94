"""Responses of the routes: an event stream, or one body when all choices have ended."""

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
    from kinfolk.server.bridge import ActiveRequest, Batch
    from kinfolk.server.service import Service

logger = logging.getLogger(__name__)


def json_response(data: Any, status: int = 200) -> Response:
    return Response(encode_json(data), status, media_type="application/json")


async def stream(
    service: Service,
    active: ActiveRequest,
    chunks: Callable[[Batch], list[Any]],
    last: Callable[[], Any],
) -> Response:
    """A response of events: ``chunks`` of each batch, then ``last()`` unless it is ``None``.

    Raises :class:`ApiError` for a failure before the first event, which thus gets its own status.
    """
    try:
        await active.wait_for_first(service.options.headers_after)
    except BaseException:
        active.close()
        raise

    async def source() -> AsyncGenerator[bytes]:
        try:
            async with aclosing(active.batches()) as batches:
                async for batch in batches:
                    yield b"".join(map(event, chunks(batch)))
            final = last()
            if final is not None:
                yield event(final)
        except Exception as error:
            yield event(_client_error(error).body())
        service.record(active)
        yield DONE

    options = service.options
    return EventStream(source(), active.close, options.ping_after, options.write_timeout)


async def collect(
    request: Request,
    service: Service,
    active: ActiveRequest,
    take: Callable[[int, AnswerPart], None],
) -> bool:
    """Pass every piece to ``take(index, piece)``; false if the client disconnected before the
    end."""

    async def read() -> None:
        async with aclosing(active.batches()) as batches:
            async for batch in batches:
                for index, piece in batch:
                    take(index, piece)
        service.record(active)

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
        active.close()


def _client_error(error: Exception) -> ApiError:
    """The error for the client; an unexpected one is also logged."""
    api_error = from_exception(error)
    if api_error is not error and api_error.status >= 500:
        logger.error("a stream failed", exc_info=error)
    return api_error

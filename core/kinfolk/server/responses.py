"""Responses of the routes: an event stream, or one body when all choices have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kinfolk.engine.answer import AnswerPart
from kinfolk.server.encoding import encode_json
from kinfolk.server.errors import ApiError, from_exception
from kinfolk.server.sse import DONE, EventStream, cancelled, event, until_disconnect

if TYPE_CHECKING:
    from kinfolk.engine.prompt import Prompt
    from kinfolk.server.bridge import ActiveRequest, Batch
    from kinfolk.server.service import Service

logger = logging.getLogger(__name__)


def json_response(data: Any, status: int = 200) -> Response:
    return Response(encode_json(data), status, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Launched:
    """A request whose generations run, with the ``prompts`` that they read."""

    active: ActiveRequest
    prompts: Sequence[Prompt]


class StreamEncoder(Protocol):
    """Makes the events of a stream."""

    def chunks(self, batch: Batch) -> list[Any]:
        """The events of a batch."""

    def usage(self) -> Any:
        """The last event, ``None`` = there is none."""


async def launched(request: Request, launch: Coroutine[Any, Any, Launched]) -> Launched:
    """Wait for ``launch``. Raises its error, and :class:`ClientDisconnect` if the client leaves."""
    launching = asyncio.ensure_future(launch)
    await _is_done(request, launching, None)
    return launching.result()


async def stream(
    request: Request,
    service: Service,
    launch: Coroutine[Any, Any, Launched],
    encoder: Callable[[Sequence[Prompt]], StreamEncoder],
) -> Response:
    """A response of events: those of each batch, then the encoder's last one.

    ``launch`` may take long, as while a prompt is compressed: then the response begins before it is
    done. Raises :class:`ApiError` for a failure before the first event, which thus gets its own
    status, and :class:`ClientDisconnect`.
    """
    options, launching = service.options, asyncio.ensure_future(launch)
    if await _is_done(request, launching, options.headers_after):
        active = launching.result().active
        try:
            await active.wait_for_first(options.headers_after)
        except BaseException:
            active.close()
            raise
    return EventStream(
        _events(service, launching, encoder),
        lambda: _give_up(launching),
        options.ping_after,
        options.write_timeout,
    )


async def _events(
    service: Service,
    launching: asyncio.Future[Launched],
    encoder: Callable[[Sequence[Prompt]], StreamEncoder],
) -> AsyncGenerator[bytes]:
    active: ActiveRequest | None = None
    try:
        found = await launching
        active, encode = found.active, encoder(found.prompts)
        async with aclosing(active.batches()) as batches:
            async for batch in batches:
                yield b"".join(map(event, encode.chunks(batch)))
        final = encode.usage()
        if final is not None:
            yield event(final)
    except Exception as error:
        yield event(_client_error(error).body())
    if active is not None:
        service.record(active)
    yield DONE


async def _is_done(
    request: Request, launching: asyncio.Future[Launched], seconds: float | None
) -> bool:
    """Wait for a launch, at most so many seconds. Raises :class:`ClientDisconnect`, after which
    nothing runs, if the client leaves meanwhile."""
    gone: asyncio.Future[Any] = asyncio.ensure_future(until_disconnect(request.receive))
    either: set[asyncio.Future[Any]] = {launching, gone}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not launching.done():
            raise ClientDisconnect
        return launching.done()
    except BaseException:
        await cancelled(launching)
        _give_up(launching)
        raise
    finally:
        await cancelled(gone)


def _give_up(launching: asyncio.Future[Launched]) -> None:
    """Cancel a launch, or the generations that it has launched."""
    if not launching.done():
        launching.cancel()
    elif not launching.cancelled() and launching.exception() is None:
        launching.result().active.close()


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

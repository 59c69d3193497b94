"""What happens to every request before it reaches a route: identity, key, size.

Plain ASGI: a middleware that wraps the response would hide a client's disconnect.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kinfolk.server import request_log
from kinfolk.server.encoding import encode_json
from kinfolk.server.errors import ApiError, from_exception

logger = logging.getLogger(__name__)

PUBLIC = frozenset({"/", "/health", "/v1/health", "/healthz"})
REQUEST_ID = "X-Request-Id"


def error_response(error: ApiError) -> Response:
    return Response(encode_json(error.body()), error.status, error.headers(), "application/json")


class RequestIds:
    """Gives every answer an id: the client's own where it sent a decent one."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope).get(REQUEST_ID, "")
        decent = 0 < len(asked) <= 128 and asked.isascii() and asked.isprintable()
        request_id = asked if decent else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})[request_log.REQUEST_ID] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class Failures:
    """Answers what nobody has caught, and logs it: here and nowhere else.

    An exception that went on to the web server would be traced by it again.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:
            logger.exception("%s %r failed", scope.get("method"), scope.get("path"))
            if not begun:
                await error_response(from_exception(error))(scope, receive, send)


class ApiKeys:
    """Lets through who names a key, as ``Authorization: Bearer`` or ``X-Api-Key``."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], public: frozenset[str] = PUBLIC):
        self.app = app
        self.keys = tuple(key.encode() for key in keys)
        self.public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            error = ApiError(401, "Invalid API Key", code="invalid_api_key")
            await error_response(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        if scope["path"] in self.public or scope["method"] == "OPTIONS":
            return True
        headers = Headers(scope=scope)
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        given = [headers.get("X-Api-Key", "")]
        if scheme.lower() == "bearer":
            given.append(bearer.strip())
        # Every key is compared in full, so that the time taken tells nothing.
        matches = [
            hmac.compare_digest(key, text.encode()) for key in self.keys for text in given if text
        ]
        return any(matches)


class BodyLimit:
    """Refuses bodies above ``limit`` bytes, announced or not."""

    def __init__(self, app: ASGIApp, limit: int):
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("Content-Length", "")
        if announced.isdigit() and int(announced) > self.limit:
            await error_response(self._error())(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise self._error()
            return message

        await self.app(scope, receive_counted, send)

    def _error(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self.limit} bytes", code="request_too_large"
        )

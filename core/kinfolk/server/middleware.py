"""ASGI middleware: request ids, unhandled errors, API keys, body size.

Plain ASGI instead of Starlette's ``BaseHTTPMiddleware``, which hides a client's disconnect.
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
REQUEST_ID_HEADER = "X-Request-Id"


def error_response(error: ApiError) -> Response:
    return Response(encode_json(error.body()), error.status, error.headers(), "application/json")


class RequestIds:
    """Adds a request id to every response: the client's own, if it is short printable ASCII."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        valid = 0 < len(sent) <= 128 and sent.isascii() and sent.isprintable()
        request_id = sent if valid else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})[request_log.REQUEST_ID] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class UnhandledErrors:
    """Logs an exception that no handler caught, and answers with 500 if no response has begun.

    The exception is not re-raised: the web server would log it a second time.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_tracked(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_tracked)
        except Exception as error:
            logger.exception("%s %r failed", scope.get("method"), scope.get("path"))
            if not begun:
                await error_response(from_exception(error))(scope, receive, send)


class ApiKeys:
    """Requires a key in ``Authorization: Bearer`` or ``X-Api-Key``; answers 401 otherwise."""

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
        sent = [headers.get("X-Api-Key", "")]
        if scheme.lower() == "bearer":
            sent.append(bearer.strip())
        # Constant time: compare with every key in full.
        matches = [
            hmac.compare_digest(key, text.encode()) for key in self.keys for text in sent if text
        ]
        return any(matches)


class BodyLimit:
    """Answers 413 to a body above ``limit`` bytes, by its Content-Length or as received."""

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

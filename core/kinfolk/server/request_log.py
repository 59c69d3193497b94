"""A line in the log for each request, when all of its answer has been sent."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kinfolk.server.errors import from_exception

if TYPE_CHECKING:
    from kinfolk.server.bridge import Live

logger = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""Status of a request that nobody waits for. Nobody hears of it but the log."""

LIVE: Final = "live"
REQUEST_ID: Final = "request_id"
"""What routes and middleware leave in a request's ``state``."""


class RequestLog:
    """Outermost of all, so that what is refused early leaves a line too."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            _log(scope, status, time.perf_counter() - started)


def _log(scope: Scope, status: int, seconds: float) -> None:
    state = scope.get("state", {})
    live: Live | None = state.get(LIVE)
    # A path may hold any character, and must not make lines of its own.
    parts = [
        f"{scope['method']} {quote(scope['path'], safe='/:@!$&()*+,;=~')} {status or 'unanswered'}"
    ]
    level = logging.INFO
    if live is not None:
        parts += _told(live)
    elif status == CLIENT_GONE:
        level = logging.DEBUG
        parts.append("the client left while it was sending")
    parts.append(f"{seconds:.2f} s")
    if scope.get("client"):
        host, port = scope["client"][:2]
        parts.append(f"client {host}:{port}")
    if REQUEST_ID in state:
        parts.append(state[REQUEST_ID])
    logger.log(level, "%s", ", ".join(parts))


def _told(live: Live) -> list[str]:
    """Tokens of a request, and how it ended."""
    cached = live.cached_tokens
    prompt = f"{live.prompt_tokens} prompt tokens"
    return [
        prompt if cached is None else f"{prompt} ({cached} cached)",
        f"{live.completion_tokens} completion tokens",
        _end(live),
    ]


def _end(live: Live) -> str:
    if live.failure is not None:
        told = from_exception(live.failure)
        return told.code or told.kind
    if live.open:
        return "the client left"
    return " and ".join(dict.fromkeys(end.reason.value for end in live.ends))

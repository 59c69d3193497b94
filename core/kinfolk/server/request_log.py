"""Request log: one line for each request, when its response has been sent."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kinfolk.server.errors import from_exception

if TYPE_CHECKING:
    from kinfolk.sched.draft_counts import DraftCounts
    from kinfolk.server.bridge import ActiveRequest

logger = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""Status of a request whose client has disconnected (as in nginx); it appears only in the log."""

ACTIVE_REQUEST: Final = "active_request"
REQUEST_ID: Final = "request_id"
"""Keys of a request's ``state``, set by routes and middleware."""


class RequestLog:
    """The outermost middleware, so that requests refused by others are logged too."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_tracked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_tracked)
        finally:
            _log(scope, status, time.perf_counter() - started)


def _log(scope: Scope, status: int, seconds: float) -> None:
    state = scope.get("state", {})
    active: ActiveRequest | None = state.get(ACTIVE_REQUEST)
    # Quoted, because a path may contain line ends.
    parts = [
        f"{scope['method']} {quote(scope['path'], safe='/:@!$&()*+,;=~')} {status or 'unanswered'}"
    ]
    level = logging.INFO
    if active is not None:
        parts += _answer_fields(active)
    elif status == CLIENT_GONE:
        level = logging.DEBUG
        parts.append("the client disconnected while sending")
    parts.append(f"{seconds:.2f} s")
    if scope.get("client"):
        host, port = scope["client"][:2]
        parts.append(f"client {host}:{port}")
    if REQUEST_ID in state:
        parts.append(state[REQUEST_ID])
    logger.log(level, "%s", ", ".join(parts))


def _answer_fields(active: ActiveRequest) -> list[str]:
    """Token counts of a request, the reason of its end, and what became of its drafts."""
    cached, drafts = active.cached_tokens, active.drafts
    prompt = f"{active.prompt_tokens} prompt tokens"
    return [
        prompt if cached is None else f"{prompt} ({cached} cached)",
        f"{active.completion_tokens} completion tokens",
        _end_reason(active),
        *([_draft_field(drafts)] if drafts.steps else []),
    ]


def _draft_field(drafts: DraftCounts) -> str:
    """``6 of 8 drafted tokens accepted in 2 steps, 4.00 tokens a step (100 100 50 50 %)``"""
    places = " ".join(f"{100 * part:.0f}" for part in drafts.per_position)
    return (
        f"{drafts.accepted} of {drafts.drafted} drafted tokens accepted in {drafts.steps} steps, "
        f"{drafts.accept_length:.2f} tokens a step ({places} %)"
    )


def _end_reason(active: ActiveRequest) -> str:
    if active.failure is not None:
        error = from_exception(active.failure)
        return error.code or error.kind
    if active.open:
        return "the client disconnected"
    return " and ".join(dict.fromkeys(end.reason.value for end in active.ends))

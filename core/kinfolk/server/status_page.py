"""The live page, ``GET /status``, and what it reads: ``/status/json`` and ``/status/events``."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from kinfolk.server.responses import json_response
from kinfolk.server.sse import EventStream
from kinfolk.server.status_feed import StatusFeed

WRITE_SECONDS: Final = 5.0
"""A listener that takes longer to read what was sent is dropped."""

QUIET_SECONDS: Final = 15.0
"""Silence after which the page is sent a comment. It takes longer silence for a lost connection."""

_TYPES: Final = {"css": "text/css", "html": "text/html", "js": "text/javascript"}
_FILES: Final = ("page.css", "page.js", "view.js", "numbers.js", "events.js")

PUBLIC_FILES: Final = frozenset({"/status", "/status/", *(f"/status/{name}" for name in _FILES)})
"""They say nothing about this server, so they need no key."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    # Everything comes from this server, and no other page may frame it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def status_router(feed: StatusFeed) -> APIRouter:
    router = APIRouter()

    @router.get("/status")
    async def page() -> Response:
        return _file("index.html")

    @router.get("/status/")
    async def slash() -> Response:
        # Relative, as a proxy may have put a path before ours.
        return RedirectResponse("../status")

    @router.get("/status/json")
    async def status() -> Response:
        return json_response(await feed.status())

    @router.get("/status/events")
    async def events() -> Response:
        return EventStream(feed.listen(), feed.leave, QUIET_SECONDS, WRITE_SECONDS)

    for name in _FILES:
        router.add_api_route(f"/status/{name}", _served(name))
    return router


def _served(name: str) -> Any:
    async def serve() -> Response:
        return _file(name)

    return serve


def _file(name: str) -> Response:
    content = (resources.files("kinfolk.server") / "page" / name).read_bytes()
    return Response(content, 200, _HEADERS, _TYPES[name.rpartition(".")[2]])

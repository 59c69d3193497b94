"""The ASGI application: routes, middleware and error handlers of a service."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kinfolk.errors import KinfolkError
from kinfolk.server.chat import chat_router
from kinfolk.server.completions import completions_router
from kinfolk.server.errors import ApiError, from_exception
from kinfolk.server.metrics import metrics_router
from kinfolk.server.middleware import (
    PUBLIC,
    REQUEST_ID_HEADER,
    ApiKeys,
    BodyLimit,
    RequestIds,
    UnhandledErrors,
    error_response,
)
from kinfolk.server.models import models_router
from kinfolk.server.request_log import CLIENT_GONE, RequestLog
from kinfolk.server.service import Service
from kinfolk.server.status_feed import StatusFeed
from kinfolk.server.status_page import PUBLIC_FILES, status_router
from kinfolk.version import __version__

LOCAL_ORIGINS: Final = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def create_app(service: Service, feed: StatusFeed | None = None) -> FastAPI:
    """The application of a service; ``feed`` is for whoever ends it before the service ends."""
    # The routes parse their bodies themselves, so a generated OpenAPI schema would be empty.
    app = FastAPI(title="kinfolk", version=__version__, openapi_url=None)
    routers = (chat_router, completions_router, models_router, metrics_router)
    for router in routers:
        app.include_router(router(service))
    app.include_router(status_router(feed or StatusFeed(service)))
    app.add_exception_handler(ApiError, _on_error)
    app.add_exception_handler(KinfolkError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    _add_middleware(app, service)
    return app


def _add_middleware(app: FastAPI, service: Service) -> None:
    """Middleware added last runs first: CORS wraps the key check, so that a 401 has its headers."""
    options = service.options
    app.add_middleware(BodyLimit, limit=options.max_body)
    if options.api_keys:
        public = PUBLIC | PUBLIC_FILES | ({"/metrics"} if options.public_metrics else set())
        app.add_middleware(ApiKeys, keys=options.api_keys, public=public)
    app.add_middleware(UnhandledErrors)
    app.add_middleware(RequestIds)
    if options.cors != "off":
        _add_cors(app, options.cors)
    app.add_middleware(RequestLog)


def _add_cors(app: FastAPI, allowed: str) -> None:
    local = allowed == "localhost"
    origins = [] if local else [origin.strip() for origin in allowed.split(",")]
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_origin_regex=LOCAL_ORIGINS if local else None,
        allow_methods=["GET", "POST", "OPTIONS"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID_HEADER],
    )


async def _on_error(_: Request, error: Exception) -> Response:
    return error_response(from_exception(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Errors of the framework: unknown path, wrong method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return error_response(ApiError(404, f"there is no endpoint {path}"))
    if error.status_code == 405:
        return error_response(ApiError(405, f"{path} does not support {request.method}"))
    return error_response(ApiError(error.status_code, str(error.detail)))


async def _on_disconnect(_: Request, __: Exception) -> Response:
    """The client disconnected while it sent its body; only the log shows this status."""
    return Response(status_code=CLIENT_GONE)

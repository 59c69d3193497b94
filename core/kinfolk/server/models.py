"""Model and health endpoints: ``/v1/models``, ``/health``, ``/``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kinfolk.errors import shown
from kinfolk.server.errors import ApiError
from kinfolk.server.responses import json_response
from kinfolk.server.service import Service
from kinfolk.version import __version__


def served_name(service: Service, name: str | None) -> str:
    """The model's name for a response: the client's, because some clients compare it.

    Raises :class:`ApiError` 404 for an unknown name if the server has ``strict_model``.
    """
    own = service.options.model_name
    if name and name != own and service.options.strict_model:
        raise _unknown_model(name, own)
    return name or own


def _unknown_model(name: str, own: str) -> ApiError:
    return ApiError(
        404,
        f"there is no model {shown(name)}; this server serves {own!r}",
        code="model_not_found",
        param="model",
    )


def models_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    @router.get("/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [describe(service)]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.options.model_name:
            raise _unknown_model(name, service.options.model_name)
        return json_response(describe(service))

    @router.get("/health")
    @router.get("/healthz")
    @router.get("/v1/health")
    async def health() -> Response:
        if service.draining:
            return json_response({"status": "draining"}, 503)
        return json_response({"status": "ok"})

    @router.get("/")
    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("Accept", ""):  # a browser: the live page
            return RedirectResponse("status")
        return json_response(
            {
                "name": "kinfolk",
                "version": __version__,
                "model": service.options.model_name,
                "endpoints": [
                    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/health"),
                    *("/metrics", "/status", "/status/json", "/status/events"),
                ],
            }
        )

    return router


def describe(service: Service) -> dict[str, Any]:
    info = service.runtime.info
    return {
        "id": service.options.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "kinfolk",
        # One number under the names that different clients read.
        "context_length": info.context,
        "max_context_length": info.context,
        "max_model_len": info.context,
        "meta": {
            "arch": info.architecture,
            "family": info.family,
            "n_vocab": info.vocabulary,
            "n_ctx_train": info.context,
        },
    }

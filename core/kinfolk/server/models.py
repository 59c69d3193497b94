"""What is being served: ``/v1/models``, ``/health``, ``/``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from kinfolk.errors import shown
from kinfolk.server.errors import ApiError
from kinfolk.server.responses import json_response
from kinfolk.server.service import Service
from kinfolk.version import __version__


def served_name(service: Service, asked: str | None) -> str:
    """The model's name for an answer: the one the client used, as some compare.

    Raises :class:`ApiError` 404 for another name if the server is strict about names.
    """
    own = service.options.model_name
    if asked and asked != own and service.options.strict_model:
        raise ApiError(
            404,
            f"there is no model {shown(asked)} here; the one being served is {own!r}",
            code="model_not_found",
            param="model",
        )
    return asked or own


def models_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    @router.get("/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [describe(service)]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.options.model_name:
            raise ApiError(
                404,
                f"there is no model {shown(name)} here; the one being served is "
                f"{service.options.model_name!r}",
                code="model_not_found",
                param="model",
            )
        return json_response(describe(service))

    @router.get("/health")
    @router.get("/healthz")
    @router.get("/v1/health")
    async def health() -> Response:
        if service.draining:
            return json_response({"status": "draining"}, 503)
        return json_response({"status": "ok"})

    @router.get("/")
    async def root() -> Response:
        return json_response(
            {
                "name": "kinfolk",
                "version": __version__,
                "model": service.options.model_name,
                "endpoints": ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health"],
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
        # The same number under the names that different clients look for.
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

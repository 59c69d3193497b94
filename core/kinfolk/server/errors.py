"""Error responses of the API: one body format, one place that builds it.

Clients branch on ``type`` and ``code``. Some search messages for "maximum context length": keep
these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from kinfolk.errors import (
    CapacityError,
    ContextLengthExceeded,
    KinfolkError,
    QueueFull,
    RequestError,
    SettingsError,
    shown,
)

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """A response with an error status.

    ``param`` names the field at fault. ``kind`` is the error's ``type``; by default it follows from
    the status. ``extra`` are further members of the error object, ``retry_after`` is in seconds.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "",
        extra: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.kind = kind or _TYPES.get(status, "server_error")
        self.extra = extra or {}
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "code": self.code,
                "param": self.param,
                **self.extra,
            }
        }

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: the request is malformed."""
    return ApiError(400, message, param=param)


def unsupported(message: str, param: str) -> ApiError:
    """400: the request is valid, but needs a feature that this server does not have."""
    return ApiError(
        400, message, code="unsupported_parameter", param=param, kind="not_supported_error"
    )


def unavailable(message: str, code: str | None = None) -> ApiError:
    """503, with a hint to try again in 2 seconds."""
    return ApiError(503, message, code=code, retry_after=2)


def from_validation(error: ValidationError, body: type[BaseModel]) -> ApiError:
    """The first problem of a body, with the path of the field at fault.

    The message quotes the field's description, which states its valid values.
    """
    problem = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in problem["loc"]]
    if not path:
        return invalid(problem["msg"].removeprefix("Value error, "))
    field, where = path[0], ".".join(path)
    rule = body.model_fields[field].description
    if problem["type"] == "missing" and len(path) == 1:
        return invalid(f"{field} is missing: it must be {rule}", field)
    value = shown(problem["input"])
    text = f"got {value}" if len(path) == 1 else f"but {where} is {value}"
    return invalid(f"{field} must be {rule}, {text}", where)


def from_kinfolk(error: KinfolkError) -> ApiError:
    if isinstance(error, ContextLengthExceeded):
        return ApiError(
            400,
            str(error),
            code="context_length_exceeded",
            param=error.field,
            kind="exceed_context_size_error",
            extra={"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context},
        )
    if isinstance(error, RequestError | SettingsError):
        return ApiError(error.http_status, str(error), param=error.field)
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", retry_after=1)
    if isinstance(error, CapacityError):
        return unavailable(str(error), "no_capacity")
    return ApiError(error.http_status, str(error))


def from_exception(error: BaseException) -> ApiError:
    """Any exception as a response; an unexpected one reveals no internals."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, KinfolkError):
        return from_kinfolk(error)
    return ApiError(500, "internal error; see the server's log")

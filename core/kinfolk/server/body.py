"""Parsing of request bodies: strict JSON, bounded depth."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from kinfolk.errors import shown
from kinfolk.server.errors import from_validation, invalid

MAX_DEPTH: Final = 64
LONG_BODY: Final = 1 << 16
"""Bytes that take a millisecond or more; each item of a list takes a tenth of a microsecond."""

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, model: type[B]) -> B:
    """The body as ``model``; its content type is ignored. Raises :class:`ApiError` 400."""
    raw = await request.body()
    if len(raw) <= LONG_BODY:
        return _parse(raw, model)
    return await run_in_threadpool(_parse, raw, model)


def _parse(raw: bytes, model: type[B]) -> B:
    data = parse_json(raw)
    if not isinstance(data, dict):
        raise invalid(f"the body must be a JSON object, got {shown(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise from_validation(error, model) from None


def parse_json(raw: bytes) -> Any:
    """Standard JSON, without NaN and infinity, at most 64 levels deep. Raises :class:`ApiError`."""

    def refuse(name: str) -> Any:
        raise invalid(f"the body is not valid JSON: {name} is not a JSON number")

    try:
        data = json.loads(raw, parse_constant=refuse)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not valid UTF-8 at byte {error.start}") from None
    except ValueError:
        # The only other error of the decoder is Python's limit on digits.
        raise invalid("the body has a number with too many digits") from None
    if not _is_shallow(data, MAX_DEPTH):
        raise _too_deep()
    return data


def _is_shallow(data: Any, levels: int) -> bool:
    if isinstance(data, dict):
        data = data.values()
    elif not isinstance(data, list):
        return True
    # Scalars of a list of millions of ids cost no call each.
    inner = [item for item in data if isinstance(item, (dict, list))]
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in inner)


def _too_deep() -> Exception:
    return invalid(f"the body is nested more than {MAX_DEPTH} levels deep")

"""Field types of request bodies: validators and their ranges."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from kinfolk.errors import shown
from kinfolk.sched.rules import FORBIDDEN, RULES, is_number
from kinfolk.server.errors import invalid

MAX_STOPS: Final = 16
MAX_STOP_LENGTH: Final = 256
MAX_ID_DIGITS: Final = 18
"""Most digits of a token id in a key."""

COUNT: Final = "an integer of at least 1, or -1 for as many as fit"
BIAS: Final = f"a number between {FORBIDDEN} and {-FORBIDDEN}, or false to forbid the token"


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a bool is not a number")
    return value


def sampling_range(name: str) -> AfterValidator:
    """The validator of a field of ``Sampling``."""

    def check(value: float | None) -> float | None:
        if value is not None and not RULES[name].holds(value):
            raise ValueError(RULES[name].words)
        return value

    return AfterValidator(check)


def sampling_field(name: str) -> Any:
    """An optional field of ``Sampling``, described by its range."""
    return Field(None, description=RULES[name].words)


def _count(value: int | None) -> int | None:
    if value is not None and value != -1 and value < 1:
        raise ValueError(COUNT)
    return value


def _stops(value: object) -> object:
    """A text or a list of texts, without the empty ones."""
    if value is None or value is False:
        return ()
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return tuple(text for text in value if text != "")
    return value


def _biases(value: object) -> dict[int, float]:
    """``{"id": bias}`` or ``[[id, bias], ...]``; ``false`` forbids a token."""
    if value is None:
        return {}
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise ValueError("not a list of pairs")
    biases = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise invalid(
                f"logit_bias: an entry must be [token id, bias], got {shown(pair)}", "logit_bias"
            )
        token = _token_id(pair[0])
        biases[token] = _bias(token, pair[1])
    return biases


def _token_id(value: object) -> int:
    """A token id, from an integer or the text of one (JSON keys are texts)."""
    if (
        isinstance(value, str)
        and value.isascii()
        and value.isdecimal()
        and len(value) < MAX_ID_DIGITS
    ):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(
            f"logit_bias: a token id must be an integer, got {shown(value)}", "logit_bias"
        )
    return value


def _bias(token: int, value: object) -> float:
    if value is False:
        return -math.inf
    if is_number(value) and FORBIDDEN <= value <= -FORBIDDEN:
        return float(value)
    raise invalid(
        f"logit_bias: the bias of token {shown(token)} must be {BIAS}, got {shown(value)}",
        f"logit_bias.{token}" if abs(token) < 10**MAX_ID_DIGITS else "logit_bias",
    )


def _prompts(value: object) -> list[str | list[int]]:
    """One or several prompts, all texts or all lists of ids."""
    if isinstance(value, str):
        return [value]
    entries: list[Any] = value if isinstance(value, list) else []
    kinds = set(map(type, entries))
    if kinds == {int}:
        return [entries]
    if kinds == {str}:
        return entries
    if kinds == {list} and all(set(map(type, ids)) <= {int} for ids in entries):
        return entries
    raise ValueError("neither texts nor ids")


Integer = Annotated[int, BeforeValidator(_reject_bool)]
Number = Annotated[float, BeforeValidator(_reject_bool)]
TokenCount = Annotated[Integer | None, AfterValidator(_count)]
Stops = Annotated[
    tuple[Annotated[str, Field(max_length=MAX_STOP_LENGTH)], ...],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_stops),
]
Biases = Annotated[dict[int, float], PlainValidator(_biases)]
Prompts = Annotated[list[str | list[int]], PlainValidator(_prompts)]

"""Values of tool arguments: from what a model wrote to JSON, as the tool's schema asks."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

Types = tuple[str, ...]
STRING: Final[Types] = ("string",)

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PYTHON: Final = {"None": None, "True": True, "False": False}
_ALIASES: Final = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_EXACT_INTEGERS: Final = 2.0**53
_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
# What parsers of foreign text raise; the last two on texts that are nested too deep.
_FAILURES: Final = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)


class _Unfit(ValueError):
    """The text is no value of the type."""


def types_of(schema: Any) -> Types:
    """The types a JSON schema allows, in its order; none if it does not say."""
    if not isinstance(schema, Mapping):
        return ()
    stated = schema.get("type")
    names = stated if isinstance(stated, list) else [stated]
    found = [_ALIASES.get(name.lower(), name.lower()) for name in names if isinstance(name, str)]
    if not found:
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            for branch in branches if isinstance(branches, list) else ():
                found += types_of(branch)
    if not found and isinstance(schema.get("enum"), list):
        found = [_NAMES[type(value)] for value in schema["enum"] if type(value) in _NAMES]
    return tuple(dict.fromkeys(found))


def coerced(text: str, types: Types) -> str:
    """JSON of the first type that the text is a value of; what fits none stays a string."""
    wanted = [name for name in types if name != "null"]
    word = text.strip()
    if types != STRING and (
        word.lower() == "null" or (word == "None" and ("null" in types or "string" not in types))
    ):
        return "null"
    for name in wanted or [""]:
        try:
            return to_json(_READERS.get(name, _any)(text))
        except _FAILURES:
            continue
    return to_json(text)


def to_json(value: Any) -> str:
    """JSON that is also valid UTF-8. Raises :class:`ValueError` for what JSON cannot say."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair has no bytes, only an escape.
        return json.dumps(value, allow_nan=False)
    return text


def escaped(text: str) -> str:
    """The inside of a JSON string."""
    return to_json(text)[1:-1]


def _any(text: str) -> Any:
    word = text.strip()
    return _PYTHON[word] if word in _PYTHON else _json(word)


def _integer(text: str) -> int:
    word = text.strip()
    if _INTEGER.fullmatch(word):
        return int(word)
    number = float(word)
    if not number.is_integer() or abs(number) > _EXACT_INTEGERS:
        raise _Unfit
    return int(number)


def _number(text: str) -> int | float:
    try:
        return _integer(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise _Unfit
    return number


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _BOOLEANS:
        raise _Unfit
    return _BOOLEANS[word]


def _container(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = _json(text)
        except ValueError:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                value = ast.literal_eval(text.strip())
        if not isinstance(value, kind):
            raise _Unfit
        return value

    return read


def _json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise _Unfit

    return json.loads(text, parse_constant=refuse)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container(dict),
    "array": _container(list),
}

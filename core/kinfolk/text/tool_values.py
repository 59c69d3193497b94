"""Tool argument values: the model's text converted to JSON of the type in the tool's schema."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

Types = tuple[str, ...]
STRING_TYPES: Final[Types] = ("string",)

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
_CONTAINERS: Final = frozenset(("object", "array"))
_EXACT_INTEGERS: Final = 2.0**53
_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
# Exceptions of the parsers below; the last two for text that is nested too deep.
_FAILURES: Final = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)


class _WrongType(ValueError):
    """The text is not a value of the type."""


def types_of(schema: Any, root: Any = None) -> Types:
    """The types that a JSON schema allows, in its order; empty if it states none.

    ``root`` is the schema that references such as ``#/$defs/Name`` lead into. A branch of a union
    that states no type may be an object or an array.
    """
    return tuple(_types(schema, root, {}))


def _types(schema: Any, root: Any, referred: dict[str, list[str]]) -> list[str]:
    """``referred`` has the types of references that were followed; none while they are followed, as
    a schema may lead back to itself."""
    if not isinstance(schema, Mapping):
        return []
    stated, reference = schema.get("type"), schema.get("$ref")
    names = stated if isinstance(stated, list) else [stated]
    types = [_ALIASES.get(name.lower(), name.lower()) for name in names if isinstance(name, str)]
    if not types and isinstance(reference, str):
        if reference not in referred:
            referred[reference] = []
            referred[reference] = _types(_referred(reference, root), root, referred)
        types = referred[reference][:]
    if not types:
        for branch in (*_branches(schema, "anyOf"), *_branches(schema, "oneOf")):
            types += _types(branch, root, referred) or ["object", "array"]
    if not types:
        for part in _branches(schema, "allOf"):
            types += _types(part, root, referred)
    if not types:
        values = [schema["const"]] if "const" in schema else _branches(schema, "enum")
        types = [_NAMES[type(value)] for value in values if type(value) in _NAMES]
    return list(dict.fromkeys(types))


def _branches(schema: Mapping[str, Any], kind: str) -> list[Any]:
    branches = schema.get(kind)
    return branches if isinstance(branches, list) else []


def _referred(reference: str, root: Any) -> Any:
    """What a reference into ``root`` leads to, ``None`` if it leads elsewhere."""
    start, *steps = reference.split("/")
    found = root if start == "#" else None
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def coerce(text: str, types: Types) -> str:
    """The text as JSON of the first of ``types`` that it is a value of, else as a JSON string.
    Objects and arrays come first: any text is a string, and few texts are one of those."""
    candidates = sorted(
        (name for name in types if name != "null"), key=lambda name: name not in _CONTAINERS
    )
    word = text.strip()
    if types != STRING_TYPES and (
        word.lower() == "null" or (word == "None" and ("null" in types or "string" not in types))
    ):
        return "null"
    for name in candidates or [""]:
        try:
            return to_json(_READERS.get(name, _any)(text))
        except _FAILURES:
            continue
    return to_json(text)


def to_json(value: Any) -> str:
    """JSON that is valid UTF-8. Raises :class:`ValueError` for NaN and infinity."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate can only be written as an escape.
        return json.dumps(value, allow_nan=False)
    return text


def escape(text: str) -> str:
    """The text as the inside of a JSON string, without the quotes."""
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
        raise _WrongType
    return int(number)


def _number(text: str) -> int | float:
    try:
        return _integer(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise _WrongType
    return number


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _BOOLEANS:
        raise _WrongType
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
            raise _WrongType
        return value

    return read


def _json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise _WrongType

    return json.loads(text, parse_constant=refuse)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container(dict),
    "array": _container(list),
}

"""Checks of types: of a record's fields when it is built, and of a value that a plugin returns."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, get_type_hints

if TYPE_CHECKING:
    from pydantic import TypeAdapter

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_RULE: Final = "a name is made of letters, digits, '.', '_' and '-'"
_REFERENCE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Checked:
    """Base of a frozen dataclass whose fields have the annotated types.

    Building one with a field of another type raises :class:`ValueError` that names class, field and
    value.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        cls: Any = type(self)
        names = [one.name for one in fields(cls)]
        values = tuple(getattr(self, name) for name in names)
        misfit = _misfit(_fields_adapter(cls), values)
        if misfit is not None:
            index, *place = misfit["loc"]
            where = ".".join(map(str, (cls.__name__, names[index], *place)))
            raise ValueError(f"{where}: {misfit['msg']}, not {reprlib.repr(misfit['input'])}")
        self.check()

    def check(self) -> None:
        """Raise :class:`ValueError` for values that the types allow and the record does not."""


def check_name(record: Checked, field: str = "name") -> None:
    """Raise :class:`ValueError` if a field is no :data:`NAME`."""
    name = getattr(record, field)
    if not NAME.fullmatch(name):
        raise ValueError(f"{type(record).__name__}.{field}: {name!r}; {NAME_RULE}")


def check_references(record: Checked, *required: str, optional: tuple[str, ...] = ()) -> None:
    """Raise :class:`ValueError` if a field is no reference; an ``optional`` one may be empty."""
    for name in (*required, *optional):
        value = getattr(record, name)
        if not (_REFERENCE.fullmatch(value) or (name in optional and not value)):
            raise ValueError(
                f"{type(record).__name__}.{name}: {value!r}; "
                'a reference is a string "module:attribute"'
            )


def is_a(kind: Any) -> Callable[[object], str]:
    """A check that a value is of a type: what is wrong with it, or the empty string."""

    def problem(value: object) -> str:
        misfit = _misfit(_adapter((kind,)), (value,))
        if misfit is None:
            return ""
        place = ".".join(map(str, misfit["loc"][1:]))
        return f"is no {_named(kind)}" + (f": {place}: {misfit['msg']}" if place else "")

    return problem


def _misfit(adapter: TypeAdapter[Any], values: tuple[object, ...]) -> Mapping[str, Any] | None:
    """The first value of another type, as pydantic describes it."""
    from pydantic import ValidationError

    try:
        adapter.validate_python(values, strict=True)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_context=False):
            # Strictly, nothing but a dict is one; a read-only mapping is as good.
            if one["type"] != "dict_type" or not isinstance(one["input"], Mapping):
                return one
    return None


@cache
def _fields_adapter(cls: Any) -> TypeAdapter[Any]:
    hints = get_type_hints(cls)
    return _adapter(tuple(hints[one.name] for one in fields(cls)))


@cache
def _adapter(kinds: tuple[Any, ...]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    together: Any = GenericAlias(tuple, kinds)
    return TypeAdapter(together)


def _named(kind: Any) -> str:
    """``tuple[PreTokenizer, ...]``: without the modules."""
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return re.sub(r"(\w+\.)+(?=\w)", "", text)

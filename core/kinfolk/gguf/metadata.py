"""Typed access to GGUF metadata; every complaint names the key, the file, what is there and what
was expected."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.ranges import Range, shown
from kinfolk.gguf.values import Scalar, Value, value_of

ARCHITECTURE_KEY: Final = "general.architecture"
_INTEGERS: Final = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})
_FLOATS: Final = frozenset({"f32", "f64"})
_NUMBERS: Final = _INTEGERS | _FLOATS


class Metadata:
    """Keys and values of one model file.

    A key that is missing is an error unless ``default`` is given, which is returned as it is.
    ``allowed`` lists the values that can be used; ``minimum``, ``maximum``, ``above`` and ``below``
    are the ends of their range. All methods raise :class:`ModelFormatError`.
    """

    def __init__(self, values: Mapping[str, Value], path: Path | None = None):
        self.path = path
        self._values = dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], path: Path | None = None) -> Metadata:
        """Metadata from plain Python values: bool, int, float, str, and sequences of these."""
        return cls({key: value_of(key, item) for key, item in values.items()}, path)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, key: str) -> Value:
        """The value as the file has it, with its type."""
        if key not in self._values:
            raise self.fail(f"key {key!r} is missing", key)
        return self._values[key]

    @property
    def architecture(self) -> str:
        return self.string(ARCHITECTURE_KEY)

    def arch_key(self, name: str) -> str:
        """``name`` under the prefix of the file's architecture."""
        return f"{self.architecture}.{name}"

    # -- scalars ----------------------------------------------------------------------------------

    def integer(
        self,
        key: str,
        *,
        default: int | None = None,
        allowed: Collection[int] | None = None,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int:
        if default is not None and key not in self:
            return default
        result = int(self._scalar(key, _INTEGERS, "an integer"))
        self._check_allowed(key, result, allowed)
        self._check_range(key, result, Range.of_integers(minimum, maximum))
        return result

    def number(
        self,
        key: str,
        *,
        default: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        above: float | None = None,
        below: float | None = None,
    ) -> float:
        """A finite float; integers are accepted."""
        if default is not None and key not in self:
            return default
        result = float(self._scalar(key, _NUMBERS, "a number"))
        self._check_range(key, result, Range(minimum, maximum, above, below))
        return result

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        if default is not None and key not in self:
            return default
        return bool(self._scalar(key, {"bool"}, "a bool"))

    def string(
        self, key: str, *, default: str | None = None, allowed: Collection[str] | None = None
    ) -> str:
        if default is not None and key not in self:
            return default
        result = str(self._scalar(key, {"string"}, "a string"))
        self._check_allowed(key, result, allowed)
        return result

    # -- arrays -----------------------------------------------------------------------------------

    def integers(
        self, key: str, *, default: Sequence[int] | None = None
    ) -> npt.NDArray[np.integer[Any]]:
        """A view of the stored integers, of the stored width."""
        array = self._numeric_array(key, default, _INTEGERS, "integers")
        return array if array.size else array.astype(np.int64)

    def numbers(
        self, key: str, *, default: Sequence[float] | None = None
    ) -> npt.NDArray[np.floating[Any] | np.integer[Any]]:
        """A view of the stored numbers, of the stored type."""
        array: npt.NDArray[Any] = self._numeric_array(key, default, _NUMBERS, "numbers")
        return array

    def booleans(self, key: str, *, default: Sequence[bool] | None = None) -> npt.NDArray[np.bool_]:
        array: npt.NDArray[Any] = self._numeric_array(key, default, {"bool"}, "bools")
        return array.astype(np.bool_, copy=False)

    def strings(self, key: str, *, default: Sequence[str] | None = None) -> Sequence[str]:
        """The stored texts, decoded one by one when they are asked for."""
        if default is not None and key not in self:
            return default
        value = self._array(key, {"string"}, "strings")
        return value.content if isinstance(value.content, Sequence) and len(value) else ()

    def per_layer(
        self,
        key: str,
        layers: int,
        *,
        default: int | None = None,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> tuple[int, ...]:
        """An integer for each layer, stored as one for all or as an array of ``layers``."""
        if not (key in self and self.value(key).is_array):
            each = self.integer(key, default=default, minimum=minimum, maximum=maximum)
            return (each,) * layers
        array = self._numeric_array(key, None, _INTEGERS, "integers")
        self._check_length(key, len(array), layers)
        entries = tuple(array.tolist())
        for layer, entry in enumerate(entries):
            self._check_range(
                key, entry, Range.of_integers(minimum, maximum), f" for layer {layer}"
            )
        return entries

    def per_layer_flags(
        self, key: str, layers: int, *, default: bool | None = None
    ) -> tuple[bool, ...]:
        """A bool for each layer, stored as one for all or as an array of ``layers``."""
        if key in self and self.value(key).is_array:
            array = self.booleans(key)
            self._check_length(key, len(array), layers)
            return tuple(array.tolist())
        return (self.boolean(key, default=default),) * layers

    # -- errors -----------------------------------------------------------------------------------

    def fail(self, message: str, key: str) -> ModelFormatError:
        """An error about ``key`` of this file, to be raised by the caller."""
        return ModelFormatError(message, path=self.path, key=key)

    def unsupported(self, message: str) -> UnsupportedModelError:
        """An error about what a sound file asks for and nobody runs; ``message`` names the key."""
        return UnsupportedModelError(message if self.path is None else f"{self.path}: {message}")

    def _scalar(self, key: str, types: Collection[str], expected: str) -> Scalar:
        value = self.value(key)
        if value.is_array or value.type not in types:
            raise self.fail(f"key {key!r} is {_phrase(value)}, expected {expected}", key)
        assert isinstance(value.content, int | float | str)
        return value.content

    def _array(self, key: str, types: Collection[str], expected: str) -> Value:
        value = self.value(key)
        # An empty list has no element type of its own.
        if not value.is_array or (value.type not in types and len(value) > 0):
            raise self.fail(
                f"key {key!r} is {_phrase(value)}, expected an array of {expected}", key
            )
        return value

    def _numeric_array(
        self, key: str, default: Sequence[Any] | None, types: Collection[str], expected: str
    ) -> npt.NDArray[Any]:
        if default is not None and key not in self:
            return np.asarray(default)
        return np.asarray(self._array(key, types, expected).content)

    def _check_length(self, key: str, found: int, layers: int) -> None:
        if found != layers:
            raise self.fail(
                f"key {key!r} has {found} entries, expected one for each of {layers} layers", key
            )

    def _check_range(self, key: str, found: float, known: Range, where: str = "") -> None:
        if found not in known:
            wanted = known.wanted(found)
            raise self.fail(f"key {key!r} is {shown(found)}{where}, expected {wanted}", key)

    def _check_allowed(self, key: str, found: Scalar, allowed: Collection[Scalar] | None) -> None:
        if allowed is not None and found not in allowed:
            options = ", ".join(repr(item) for item in allowed)
            raise self.fail(f"key {key!r} is {found!r}, expected one of {options}", key)


def _phrase(value: Value) -> str:
    """``an array of 3 i32``, ``a string``, ``a u32``."""
    text = value.describe()
    return f"an {text}" if text[0] in "ai" else f"a {text}"

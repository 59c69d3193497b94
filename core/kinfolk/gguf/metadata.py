"""Typed access to GGUF metadata. An error names the file, the key, its value and the
expectation."""

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

    A missing key returns ``default``, unchecked, and is an error if there is none. ``allowed``
    lists the accepted values; ``minimum`` and ``maximum`` are the closed, ``above`` and ``below``
    the open ends of their range. All methods raise :class:`ModelFormatError`.
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
        """The value with its stored type, unconverted."""
        if key not in self._values:
            raise self.fail(f"key {key!r} is missing", key)
        return self._values[key]

    @property
    def architecture(self) -> str:
        return self.string(ARCHITECTURE_KEY)

    def arch_key(self, name: str) -> str:
        """``name`` prefixed with the architecture: ``llama.block_count``."""
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
        """A finite float, from a stored float or integer."""
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
        """Integers [n]: a view of the stored array, in the stored width."""
        array = self._numeric_array(key, default, _INTEGERS, "integers")
        return array if array.size else array.astype(np.int64)

    def numbers(
        self, key: str, *, default: Sequence[float] | None = None
    ) -> npt.NDArray[np.floating[Any] | np.integer[Any]]:
        """Numbers [n]: a view of the stored array, in the stored type."""
        array: npt.NDArray[Any] = self._numeric_array(key, default, _NUMBERS, "numbers")
        return array

    def booleans(self, key: str, *, default: Sequence[bool] | None = None) -> npt.NDArray[np.bool_]:
        array: npt.NDArray[Any] = self._numeric_array(key, default, {"bool"}, "bools")
        return array.astype(np.bool_, copy=False)

    def strings(self, key: str, *, default: Sequence[str] | None = None) -> Sequence[str]:
        """Texts [n]; each is decoded on access."""
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
        """Integers [layers], from a stored scalar for all layers or an array [layers]."""
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
        """Bools [layers], from a stored scalar for all layers or an array [layers]."""
        if key in self and self.value(key).is_array:
            array = self.booleans(key)
            self._check_length(key, len(array), layers)
            return tuple(array.tolist())
        return (self.boolean(key, default=default),) * layers

    # -- errors -----------------------------------------------------------------------------------

    def fail(self, message: str, key: str) -> ModelFormatError:
        """The error for a bad value of ``key``; the caller raises it."""
        return ModelFormatError(message, path=self.path, key=key)

    def unsupported(self, message: str) -> UnsupportedModelError:
        """The error for a valid file with an unsupported feature; ``message`` names the key and the
        caller raises it."""
        return UnsupportedModelError(message if self.path is None else f"{self.path}: {message}")

    def _scalar(self, key: str, types: Collection[str], expected: str) -> Scalar:
        value = self.value(key)
        if value.is_array or value.type not in types:
            raise self.fail(f"key {key!r} is {_with_article(value)}, expected {expected}", key)
        assert isinstance(value.content, int | float | str)
        return value.content

    def _array(self, key: str, types: Collection[str], expected: str) -> Value:
        value = self.value(key)
        # An empty list has no element type of its own.
        if not value.is_array or (value.type not in types and len(value) > 0):
            raise self.fail(
                f"key {key!r} is {_with_article(value)}, expected an array of {expected}", key
            )
        return value

    def _numeric_array(
        self, key: str, default: Sequence[Any] | None, types: Collection[str], expected: str
    ) -> npt.NDArray[Any]:
        if default is not None and key not in self:
            return np.asarray(default)
        return np.asarray(self._array(key, types, expected).content)

    def _check_length(self, key: str, entries: int, layers: int) -> None:
        if entries != layers:
            raise self.fail(
                f"key {key!r} has {entries} entries, expected one for each of {layers} layers", key
            )

    def _check_range(self, key: str, number: float, bounds: Range, where: str = "") -> None:
        if number not in bounds:
            expected = bounds.wanted(number)
            raise self.fail(f"key {key!r} is {shown(number)}{where}, expected {expected}", key)

    def _check_allowed(self, key: str, value: Scalar, allowed: Collection[Scalar] | None) -> None:
        if allowed is not None and value not in allowed:
            options = ", ".join(repr(item) for item in allowed)
            raise self.fail(f"key {key!r} is {value!r}, expected one of {options}", key)


def _with_article(value: Value) -> str:
    """``an array of 3 i32``, ``a string``, ``a u32``."""
    text = value.describe()
    return f"an {text}" if text[0] in "ai" else f"a {text}"

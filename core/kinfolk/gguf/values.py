"""GGUF metadata values: a type name with a Python scalar, a numpy view or a lazy string array."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from kinfolk.errors import ModelFormatError

_LENGTH: Final = struct.Struct("<Q")

ByteArray = npt.NDArray[np.uint8]

BOOL: Final = 7
STRING: Final = 8
ARRAY: Final = 9

NUMERIC: Final[dict[int, tuple[str, str, struct.Struct]]] = {
    0: ("u8", "<u1", struct.Struct("<B")),
    1: ("i8", "<i1", struct.Struct("<b")),
    2: ("u16", "<u2", struct.Struct("<H")),
    3: ("i16", "<i2", struct.Struct("<h")),
    4: ("u32", "<u4", struct.Struct("<I")),
    5: ("i32", "<i4", struct.Struct("<i")),
    6: ("f32", "<f4", struct.Struct("<f")),
    10: ("u64", "<u8", struct.Struct("<Q")),
    11: ("i64", "<i8", struct.Struct("<q")),
    12: ("f64", "<f8", struct.Struct("<d")),
}
"""Value type id -> (name, numpy dtype, layout of a scalar)."""

_DTYPE_OF: Final = {name: np.dtype(dtype) for name, dtype, _ in NUMERIC.values()}


class StringArray(Sequence[str]):
    """An array of strings in the mapped file; a string is decoded on access.

    ``starts`` int64 [n] are the offsets of the texts in ``data``; each text follows its u64 length.
    Access raises :class:`ModelFormatError` for a text that is not UTF-8.
    """

    __slots__ = ("_key", "_path", "_starts", "_view")

    def __init__(self, data: ByteArray, starts: npt.NDArray[np.int64], path: Path, key: str):
        self._view = data.data
        self._starts = starts
        self._path = path
        self._key = key

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self._decode(self._starts[index].tolist())
        return self._decode([int(self._starts[index])])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def raw(self, index: int) -> bytes:
        """The undecoded bytes of a text."""
        start = int(self._starts[index])
        return bytes(self._view[start : start + _LENGTH.unpack_from(self._view, start - 8)[0]])

    def _decode(self, starts: list[int]) -> list[str]:
        view, length = self._view, _LENGTH.unpack_from
        try:
            return [
                str(view[start : start + length(view, start - 8)[0]], "utf-8") for start in starts
            ]
        except UnicodeDecodeError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: UnicodeDecodeError) -> ModelFormatError:
        index = next((i for i in range(len(self)) if self.raw(i) == error.object), len(self))
        return ModelFormatError(
            f"entry {index} of key {self._key!r} is not UTF-8 ({error.reason} at its byte "
            f"{error.start}); the file is damaged",
            path=self._path,
            key=self._key,
        )


Scalar = int | float | bool | str
Array = npt.NDArray[np.generic] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value. ``type`` is ``u32``, ``string``, ...; of an array, its element type."""

    type: str
    content: Scalar | Array
    is_array: bool = False

    def __len__(self) -> int:
        """The number of elements of an array."""
        assert not isinstance(self.content, int | float)
        return len(self.content)

    def describe(self) -> str:
        """The type in words, for messages: ``array of 3 i32``."""
        return f"array of {len(self)} {self.type}" if self.is_array else self.type


def value_of(key: str, item: object) -> Value:
    """A Python value as a GGUF value; floats are rounded to float32.

    Raises ``TypeError`` if GGUF has no type for it.
    """
    if isinstance(item, Value):
        return item
    if isinstance(item, bool | np.bool_):
        return Value("bool", bool(item))
    if isinstance(item, int | np.integer):
        return Value(_integer_type(int(item), int(item)), int(item))
    if isinstance(item, float | np.floating):
        return Value("f32", float(np.float32(item)))
    if isinstance(item, str):
        return Value("string", item)
    if isinstance(item, np.ndarray):
        return _array_value(key, item)
    if isinstance(item, Sequence) and not isinstance(item, bytes):
        if item and all(isinstance(text, str) for text in item):
            return Value("string", item, True)
        return _array_value(key, np.asarray(item))
    raise TypeError(f"key {key!r}: a {type(item).__name__} has no place in GGUF metadata")


def _array_value(key: str, items: npt.NDArray[np.generic]) -> Value:
    if items.ndim != 1:
        raise TypeError(f"key {key!r}: an array of {items.ndim} dimensions has no place in GGUF")
    if items.size == 0:
        return Value("i32", np.empty(0, np.int32), True)
    if items.dtype == np.bool_:
        return Value("bool", items, True)
    if items.dtype == np.int64:
        name = _integer_type(int(items.min()), int(items.max()))
        return Value(name, items.astype(_DTYPE_OF[name]), True)
    if items.dtype == np.float64:
        return Value("f32", items.astype(np.float32), True)
    names = [name for name, dtype in _DTYPE_OF.items() if items.dtype == dtype]
    if not names:
        raise TypeError(f"key {key!r}: an array of {items.dtype} has no place in GGUF metadata")
    return Value(names[0], items, True)


def _integer_type(least: int, most: int) -> str:
    """The narrowest of u32, i32, u64 and i64 that holds ``least`` to ``most``, in this order."""
    for name in ("u32", "i32", "u64", "i64"):
        bounds = np.iinfo(_DTYPE_OF[name])
        if bounds.min <= least and most <= bounds.max:
            return name
    raise TypeError(f"{least}..{most} do not fit an integer of GGUF")

"""Bounds-checked reader of GGUF's primitive values in a mapped file."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.values import ARRAY, BOOL, NUMERIC, STRING, ByteArray, StringArray, Value

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads GGUF's primitive values from ``data``, uint8 [bytes of the file], front to back.

    Nothing is read or allocated beyond the end of the file: every method raises
    :class:`ModelFormatError` if a count or length exceeds it. ``what`` names the value in messages.
    """

    def __init__(self, data: ByteArray, path: Path):
        self.path = path
        self.position = 0
        self._data = data
        self._view = data.data

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def fail(self, message: str, key: str | None = None) -> ModelFormatError:
        return ModelFormatError(message, path=self.path, key=key)

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._view, self._advance(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._view, self._advance(8, what))[0]
        return value

    def count(self, what: str, least_bytes: int) -> int:
        """A u64 count of elements of at least ``least_bytes`` bytes each."""
        value = self.u64(what)
        if value * least_bytes > self.remaining:
            raise self.fail(
                f"{what} is {value}, but only {self.remaining} bytes follow; "
                "the file is damaged or truncated"
            )
        return value

    def text(self, what: str) -> str:
        length = self.count(f"the length of {what}", 1)
        start = self._advance(length, what)
        try:
            return str(self._view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(
                f"{what} at byte {start} is not UTF-8 ({error.reason}); the file is damaged"
            ) from None

    def value(self, key: str) -> Value:
        """The typed value of ``key``."""
        kind = self.u32(f"the type of key {key!r}")
        if kind == ARRAY:
            return self._array(key)
        if kind == STRING:
            return Value("string", self.text(f"the value of key {key!r}"))
        if kind == BOOL:
            byte = self._view[self._advance(1, f"the value of key {key!r}")]
            if byte > 1:
                raise self.fail(f"key {key!r} is a bool with value {byte}, not 0 or 1", key)
            return Value("bool", bool(byte))
        name, _, layout = self._numeric(kind, key)
        start = self._advance(layout.size, f"the value of key {key!r}")
        return Value(name, layout.unpack_from(self._view, start)[0])

    def _array(self, key: str) -> Value:
        kind = self.u32(f"the element type of key {key!r}")
        what = f"the length of the array {key!r}"
        if kind == ARRAY:
            raise self.fail(f"key {key!r} is an array of arrays, which is not supported", key)
        if kind == STRING:
            starts = self._string_starts(self.count(what, 8), key)
            return Value("string", StringArray(self._data, starts, self.path, key), True)
        if kind == BOOL:
            flags = self._view_of(np.dtype(np.uint8), self.count(what, 1))
            if flags.size and flags.max() > 1:
                raise self.fail(f"key {key!r} is an array of bools with other values", key)
            return Value("bool", flags.view(np.bool_), True)
        name, dtype, layout = self._numeric(kind, key)
        return Value(name, self._view_of(np.dtype(dtype), self.count(what, layout.size)), True)

    def _numeric(self, kind: int, key: str) -> tuple[str, str, struct.Struct]:
        if kind not in NUMERIC:
            raise self.fail(f"key {key!r} has a value of unknown type {kind}", key)
        return NUMERIC[kind]

    def _view_of(self, dtype: np.dtype[np.generic], count: int) -> npt.NDArray[np.generic]:
        start = self._advance(count * dtype.itemsize, "an array")
        return self._data[start : self.position].view(dtype)

    def _string_starts(self, count: int, key: str) -> npt.NDArray[np.int64]:
        """Offsets int64 [count] of the texts. A loop, because each text's length gives the offset
        of the next."""
        starts = array("q")
        unpack, view, end = _U64.unpack_from, self._view, len(self._data)
        position = self.position
        for index in range(count):
            start = position + 8
            position = start + unpack(view, position)[0] if start <= end else start
            if position > end:
                raise self.fail(
                    f"entry {index} of {count} of key {key!r} runs beyond the end of the file; "
                    "the file is damaged or truncated",
                    key,
                )
            starts.append(start)
        self.position = position
        return np.frombuffer(starts, np.int64) if count else np.empty(0, np.int64)

    def _advance(self, size: int, what: str) -> int:
        """Skip ``size`` bytes; returns their offset."""
        start = self.position
        if size > self.remaining:
            raise self.fail(
                f"the file ends at byte {len(self._data)}, inside {what}; it is truncated"
            )
        self.position = start + size
        return start

"""Writes model files through gguf-py, and never leaves a half-written one under the final name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from kinfolk.errors import CapacityError, SettingsError
from kinfolk.gguf.metadata import ARCHITECTURE_KEY
from kinfolk.gguf.reader import ALIGNMENT_KEY
from kinfolk.gguf.tensor_types import TENSOR_TYPES
from kinfolk.gguf.values import ByteArray, Value, value_of

if TYPE_CHECKING:
    from gguf import GGUFWriter as Backend

PARTIAL_SUFFIX: Final = ".partial"
_TYPE_IDS: Final = {kind.name: number for number, kind in TENSOR_TYPES.items()}


class GGUFWriter:
    """A model file in the making, as a context manager.

    Metadata and all tensors are declared first, then the tensors' bytes are written in the order
    of declaration. Leaving the block normally completes the file; leaving it by an exception, or
    with tensors missing, removes what was written::

        with GGUFWriter(path, "llama") as out:
            out.add_metadata({"llama.block_count": 2})
            out.declare("token_embd.weight", (1000, 64), "Q8_0")
            out.write("token_embd.weight", chunks)
    """

    def __init__(self, path: Path | str, architecture: str):
        from gguf import GGUFWriter as Backend

        self.path = Path(path)
        self.architecture = architecture
        self.partial = self.path.with_name(self.path.name + PARTIAL_SUFFIX)
        self._backend: Backend = Backend(self.partial, architecture)
        self._declared: dict[str, int] = {}
        self._written = 0

    def add(self, key: str, value: object, type: str | None = None) -> None:
        """One metadata entry; ``type`` (``u32``, ``f32``, ...) overrides what is derived.

        Of an array it is the type of an element. Raises ``TypeError`` for what GGUF cannot hold.
        """
        from gguf import GGUFValueType

        found = value_of(key, value)
        if key == ARCHITECTURE_KEY:
            self._check_architecture(value)
            return
        if key == ALIGNMENT_KEY:
            self._backend.data_alignment = found.content
        kind = _value_type(type or found.type)
        content = _plain(found)
        if found.is_array:
            if not len(found):
                raise ValueError(f"key {key!r}: GGUF files made by gguf-py hold no empty arrays")
            self._backend.add_key_value(key, content, GGUFValueType.ARRAY, sub_type=kind)
        else:
            self._backend.add_key_value(key, content, kind)

    def add_metadata(self, values: Mapping[str, object]) -> None:
        """Entries from plain Python values, in their order."""
        for key, value in values.items():
            self.add(key, value)

    def declare(self, name: str, shape: tuple[int, ...], type_name: str) -> None:
        """Announce a tensor of ``shape`` (torch order, in numbers) stored as ``type_name``."""
        number = _TYPE_IDS[type_name.upper()]
        kind = TENSOR_TYPES[number]
        if shape[-1] % kind.block:
            raise ValueError(
                f"tensor {name!r}: rows of {shape[-1]} numbers do not divide into blocks of "
                f"{kind.block}, as {kind.name} needs"
            )
        nbytes = prod(shape) // kind.block * kind.bytes
        self._declared[name] = nbytes
        self._backend.add_tensor_info(name, shape, np.dtype(np.void), nbytes, number)

    def write(self, name: str, data: ByteArray | Iterable[ByteArray]) -> None:
        """The bytes of the next declared tensor, whole or in pieces that are never joined."""
        if self._written == 0:
            self._write_header()
        names = list(self._declared)
        if self._written == len(names) or names[self._written] != name:
            expected = "none" if self._written == len(names) else repr(names[self._written])
            raise ValueError(f"tensor {name!r} is out of turn; the next one is {expected}")
        pieces = [data] if isinstance(data, np.ndarray) else data
        with self._explaining():
            self._backend.write_tensor_data(_Stream(name, self._declared[name], pieces))
        self._written += 1

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._complete()
        finally:
            self._backend.close()
            self.partial.unlink(missing_ok=True)

    def _complete(self) -> None:
        missing = list(self._declared)[self._written :]
        if missing:
            raise ValueError(f"{len(missing)} declared tensors were not written, {missing[0]!r}")
        if not self._declared:
            self._write_header()
        with self._explaining():
            self._backend.close()
            os.replace(self.partial, self.path)

    def _write_header(self) -> None:
        with self._explaining():
            self._backend.write_header_to_file()
            self._backend.write_kv_data_to_file()
            self._backend.write_ti_data_to_file()

    def _check_architecture(self, value: object) -> None:
        if value != self.architecture:
            raise ValueError(f"the file is for {self.architecture!r}, not for {value!r}")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn what the system says about the output file into an error for the user."""
        try:
            yield
        except OSError as error:
            kind = CapacityError if error.errno == ENOSPC else SettingsError
            raise kind(f"cannot write {self.partial}: {error.strerror or error}") from None


class _Stream:
    """Looks to gguf-py like an array of ``nbytes``, but passes pieces on as they come."""

    def __init__(self, name: str, nbytes: int, pieces: Iterable[ByteArray]):
        self.nbytes = nbytes
        self._name = name
        self._pieces = pieces

    def tofile(self, file: IO[bytes]) -> None:
        written = 0
        for piece in self._pieces:
            written += file.write(np.ascontiguousarray(piece).data)
        if written != self.nbytes:
            raise ValueError(f"tensor {self._name!r}: {written} bytes came, not {self.nbytes}")


def _value_type(name: str) -> Any:
    from gguf import GGUFValueType

    long_names = {"u": "UINT", "i": "INT", "f": "FLOAT"}
    if name in ("bool", "string"):
        return GGUFValueType[name.upper()]
    return GGUFValueType[long_names[name[0]] + name[1:]]


def _plain(value: Value) -> Any:
    """The content as the Python objects gguf-py packs."""
    content = value.content
    if isinstance(content, np.ndarray):
        return content.tolist()
    return list(content) if value.is_array and not isinstance(content, int | float) else content

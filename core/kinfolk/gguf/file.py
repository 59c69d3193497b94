"""An open GGUF model: one file, or all parts of a split model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.reader import Part, read_part
from kinfolk.gguf.tensor_types import TENSOR_TYPES, TensorType
from kinfolk.gguf.values import ByteArray

SPLIT_NUMBER: Final = "split.no"
SPLIT_COUNT: Final = "split.count"
SPLIT_TENSORS: Final = "split.tensors.count"
_PART_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFFile:
    """An open model: ``metadata`` of the first part, ``inventory`` of all parts.

    Arrays and tensors are views into the mapped files and are read on first use. A view stays valid
    after ``close``.
    """

    def __init__(self, parts: tuple[Part, ...]):
        first = parts[0]
        self.path = first.path
        self.version = first.version
        self.alignment = first.alignment
        self.paths = tuple(part.path for part in parts)
        self.metadata = Metadata(first.metadata, first.path)
        self._maps = [part.data for part in parts]
        # Not a bound method: it would make a reference cycle, and the file would stay mapped, its
        # disk space in use, until the next garbage collection.
        read = partial(_read, self._maps, first.path)
        tensors = (tensor for part in parts for tensor in part.tensors)
        self.inventory = Inventory(tensors, read, first.path)

    @classmethod
    def open(cls, path: Path | str, types: Mapping[int, TensorType] = TENSOR_TYPES) -> GGUFFile:
        """Open and check a model; ``path`` of a split model is its first part.

        ``types`` are the tensor types to accept, by type id. Raises :class:`ModelFormatError`, and
        then leaves no file open.
        """
        first = read_part(Path(path), 0, types)
        meta = Metadata(first.metadata, first.path)
        # Merging the parts of a split model leaves a count of 0.
        count = meta.integer(SPLIT_COUNT, default=1, minimum=0)
        if count <= 1:
            return cls((first,))
        parts = [first]
        for index, name in enumerate(_part_paths(meta, count)[1:], start=1):
            parts.append(_next_part(name, index, count, types))
        tensors = sum(len(part.tensors) for part in parts)
        expected = meta.integer(SPLIT_TENSORS, minimum=0)
        if tensors != expected:
            raise ModelFormatError(
                f"the {count} parts hold {tensors} tensors, key {SPLIT_TENSORS!r} says {expected}",
                path=first.path,
                key=SPLIT_TENSORS,
            )
        return cls(tuple(parts))

    def close(self) -> None:
        """Release the maps; a file is unmapped with the last view of it."""
        self._maps.clear()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _read(maps: Sequence[ByteArray], path: Path, tensor: TensorInfo) -> ByteArray:
    if not maps:
        raise ValueError(f"{path} is closed")
    return maps[tensor.part][tensor.offset : tensor.offset + tensor.nbytes]


def _part_paths(meta: Metadata, count: int) -> list[Path]:
    """The paths of all parts of a split model, from the name of its first part."""
    path = meta.path
    assert path is not None
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFormatError(
            f"this is one of {count} parts, but its name does not end in "
            f"-00001-of-{count:05}.gguf, so the others cannot be found; restore the names",
            path=path,
            key=SPLIT_COUNT,
        )
    paths = [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    number = meta.integer(SPLIT_NUMBER, minimum=0)
    if number != 0 or int(match["number"]) != 1:
        raise ModelFormatError(
            f"this is part {number + 1} of {count}; open the first part, {paths[0].name}",
            path=path,
            key=SPLIT_NUMBER,
        )
    return paths


def _next_part(path: Path, index: int, count: int, types: Mapping[int, TensorType]) -> Part:
    part = read_part(path, index, types)
    meta = Metadata(part.metadata, path)
    number, total = (meta.integer(key, minimum=0) for key in (SPLIT_NUMBER, SPLIT_COUNT))
    if (number, total) != (index, count):
        raise ModelFormatError(
            f"this file says it is part {number + 1} of {total}, expected part {index + 1} "
            f"of {count}",
            path=path,
            key=SPLIT_NUMBER,
        )
    return part

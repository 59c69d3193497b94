"""Parser of one GGUF file, version 2 or 3; arrays and tensors stay in the map.

Layout (public GGUF specification): magic, version, tensor count, metadata count; the metadata; the
tensor table with dimensions innermost first; padding to the alignment; the tensors' bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.cursor import Cursor
from kinfolk.gguf.inventory import TensorInfo
from kinfolk.gguf.tensor_types import TensorType
from kinfolk.gguf.values import ByteArray, Value

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT_KEY: Final = "general.alignment"
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMENSIONS: Final = 4

# Smallest possible metadata entry and tensor entry: they bound the counts in the header.
_ENTRY_BYTES: Final = 8 + 4 + 1
_TENSOR_BYTES: Final = 8 + 1 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class Part:
    """One parsed file: its map ``data``, uint8 [bytes], and its header."""

    path: Path
    data: ByteArray
    version: int
    alignment: int
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]


def map_file(path: Path) -> ByteArray:
    """The file as read-only uint8 [bytes], memory-mapped.

    The map lives as long as any view of it. Raises :class:`ModelFormatError` if the file is
    missing, unreadable or shorter than the magic number.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < len(MAGIC):
                raise ModelFormatError("the file is too short to be a GGUF file", path=path)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFormatError(f"cannot open the model file: {reason}", path=path) from None
    return np.frombuffer(mapped, np.uint8)


def read_part(path: Path, index: int, types: Mapping[int, TensorType]) -> Part:
    """Parse a file; ``index`` is its index among the parts of a split model, ``types`` the accepted
    tensor types by type id.

    Raises :class:`ModelFormatError` if the file violates the format.
    """
    data = map_file(path)
    cursor = Cursor(data, path)
    version = _version(cursor)
    tensor_count = cursor.count("the number of tensors", _TENSOR_BYTES)
    entry_count = cursor.count("the number of metadata entries", _ENTRY_BYTES)
    metadata = _metadata(cursor, entry_count)
    alignment = _alignment(cursor, metadata)
    tensors = [_tensor(cursor, number, index, types) for number in range(tensor_count)]
    start = -(-cursor.position // alignment) * alignment
    located = tuple(_located(cursor, tensor, start, alignment) for tensor in tensors)
    _check_disjoint(cursor, located)
    return Part(path, data, version, alignment, metadata, located)


def _version(cursor: Cursor) -> int:
    magic = cursor.u32("the magic number").to_bytes(4, "little")
    if magic != MAGIC:
        raise cursor.fail(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise cursor.fail(
            "this GGUF file is big-endian, which is not supported; use a little-endian file"
        )
    raise cursor.fail(
        f"GGUF version {version} is not supported (versions 2 and 3 are); convert the model again"
    )


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for number in range(count):
        key = cursor.text(f"metadata key {number}")
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} occurs twice", key)
        metadata[key] = cursor.value(key)
    return metadata


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get(ALIGNMENT_KEY, Value("u32", DEFAULT_ALIGNMENT))
    alignment = value.content
    if value.type != "u32" or not isinstance(alignment, int):
        raise cursor.fail(
            f"key {ALIGNMENT_KEY!r} is {value.describe()}, expected u32", ALIGNMENT_KEY
        )
    if alignment < 8 or alignment & (alignment - 1):
        raise cursor.fail(
            f"key {ALIGNMENT_KEY!r} is {alignment}, expected a power of two of at least 8",
            ALIGNMENT_KEY,
        )
    return alignment


def _tensor(cursor: Cursor, number: int, part: int, types: Mapping[int, TensorType]) -> TensorInfo:
    """The next entry of the tensor table; its offset is relative to the data section."""
    name = cursor.text(f"the name of tensor {number}")
    if not name:
        raise cursor.fail(f"tensor {number} has an empty name")
    what = f"the entry of tensor {name!r}"
    dimensions = cursor.u32(what)
    if dimensions > MAX_DIMENSIONS:
        raise cursor.fail(
            f"tensor {name!r} has {dimensions} dimensions, at most {MAX_DIMENSIONS} are possible",
            name,
        )
    shape = tuple(cursor.u64(what) for _ in range(dimensions))[::-1] or (1,)
    type_id = cursor.u32(what)
    offset = cursor.u64(what)
    if type_id not in types:
        raise cursor.fail(
            f"tensor {name!r} has the unknown type {type_id}; a plugin or a newer version "
            "may know it",
            name,
        )
    kind = types[type_id]
    if 0 in shape:
        raise cursor.fail(f"tensor {name!r} has an empty shape {shape}", name)
    if shape[-1] % kind.block:
        raise cursor.fail(
            f"tensor {name!r} has rows of {shape[-1]} numbers, not a multiple of the "
            f"{kind.block} in a block of {kind.name}",
            name,
        )
    nbytes = prod(shape) // kind.block * kind.bytes
    return TensorInfo(name, shape, type_id, kind.name, cursor.path, part, offset, nbytes)


def _located(cursor: Cursor, tensor: TensorInfo, start: int, alignment: int) -> TensorInfo:
    """The tensor with its offset relative to the file, checked for alignment and bounds."""
    if tensor.offset % alignment:
        raise cursor.fail(
            f"tensor {tensor.name!r} is at offset {tensor.offset}, which is not aligned to "
            f"{alignment} bytes",
            tensor.name,
        )
    offset = start + tensor.offset
    size = cursor.position + cursor.remaining
    if offset + tensor.nbytes > size:
        raise cursor.fail(
            f"tensor {tensor.name!r} needs bytes {offset} to {offset + tensor.nbytes}, but the "
            f"file has {size}; it is truncated or damaged",
            tensor.name,
        )
    return TensorInfo(
        tensor.name,
        tensor.shape,
        tensor.ggml_type,
        tensor.type_name,
        tensor.path,
        tensor.part,
        offset,
        tensor.nbytes,
    )


def _check_disjoint(cursor: Cursor, tensors: tuple[TensorInfo, ...]) -> None:
    for one, two in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if one.offset + one.nbytes > two.offset:
            raise cursor.fail(f"tensors {one.name!r} and {two.name!r} overlap", two.name)

"""Files of the prefix cache as bytes: the header of a chunk or a point. Torch-free.

``docs/cache_format.md`` describes the format byte by byte. A file is a header with a checksum of
its own, and sections of bytes with one checksum for each MiB. Numbers are little-endian; hashes
have the most significant byte first, as in the names of files.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kinfolk.residency.kept import KEPT_CHUNK_BYTES
from kinfolk.state.cache_salt import CACHE_FORMAT
from kinfolk.state.chain_hash import HASH_BYTES, pack, paged_root, root, unpack
from kinfolk.state.geometry import chunks_for
from kinfolk.state.hashed_tokens import CHUNK_BYTES, TOKEN_BYTES
from kinfolk.types import CHUNK_POSITIONS

CHUNK_MAGIC: Final = b"KFCHUNK\n"
POINT_MAGIC: Final = b"KFPOINT\n"
CHECKED_BYTES: Final = 1 << 20
"""Bytes of a section that share a checksum."""

SECTION_ALIGNMENT: Final = 64
MAX_HEADER_BYTES: Final = 1 << 26

TOKENS_SECTION: Final = 1
BLOCK_SECTION: Final = 2
RECURRENT_SECTION: Final = 3
RESIDENCY_SECTION: Final = 4

_PREFIX: Final = struct.Struct("<8sIIQ16s16s16sQIIII")
_SECTION: Final = struct.Struct("<IIQQ")
_CHECKSUM: Final = struct.Struct("<I")


class DamagedFile(Exception):
    """A file of the cache is not what its name promises; the message says why."""


@dataclass(frozen=True, slots=True)
class PointTensor:
    """A recurrent tensor inside the bytes of a point: ``offset`` from their start."""

    layer: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class FileSection:
    """``nbytes`` bytes from byte ``offset`` of the file; ``pool``: of a block, otherwise 0."""

    kind: int
    pool: int
    nbytes: int
    offset: int = 0
    checksums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a file.

    ``key`` is the hash that names the file, ``parent`` the hash of the chunks before. A chunk ends
    behind ``length`` tokens and belongs to ``pool``. A point is the state after ``length`` tokens:
    ``chain`` are the hashes of its full chunks, ``first`` the first chunk that it needs of each
    pool, ``tensors`` what its recurrent bytes are, ``paging`` what its sequence was paged by if it
    missed something.
    """

    magic: bytes
    salt: int
    key: int
    parent: int
    length: int
    pool: int = 0
    chain: tuple[int, ...] = ()
    sections: tuple[FileSection, ...] = ()
    first: tuple[int, ...] = ()
    tensors: tuple[PointTensor, ...] = ()
    paging: str = ""
    header_bytes: int = 0
    file_bytes: int = 0

    @property
    def root(self) -> int:
        """The parent of the first chunk of a point."""
        return paged_root(root(self.salt), self.paging)

    def placed(self) -> FileHeader:
        """The header with the places of all sections, whose checksums are not known yet."""
        position = header = self._size()
        sections = []
        for section in self.sections:
            position = -(-position // SECTION_ALIGNMENT) * SECTION_ALIGNMENT
            blank = (0,) * checksums_of(section.nbytes)
            sections.append(replace(section, offset=position, checksums=blank))
            position += section.nbytes
        return replace(self, sections=tuple(sections), header_bytes=header, file_bytes=position)

    def section(self, kind: int, pool: int = 0) -> FileSection | None:
        for section in self.sections:
            if (section.kind, section.pool) == (kind, pool):
                return section
        return None

    def encode(self) -> bytes:
        """The bytes of a header that was placed."""
        description = self._description()
        parts = [
            _PREFIX.pack(
                self.magic,
                CACHE_FORMAT,
                self.header_bytes,
                self.file_bytes,
                *(one.to_bytes(HASH_BYTES, "big") for one in (self.salt, self.key, self.parent)),
                self.length,
                self.pool,
                len(self.chain),
                len(self.sections),
                len(description),
            ),
            pack(list(self.chain)),
            *(_SECTION.pack(one.kind, one.pool, one.offset, one.nbytes) for one in self.sections),
            *(_CHECKSUM.pack(crc) for one in self.sections for crc in one.checksums),
            description,
        ]
        text = b"".join(parts)
        return text + _CHECKSUM.pack(zlib.crc32(text))

    def _size(self) -> int:
        checksums = sum(checksums_of(section.nbytes) for section in self.sections)
        return (
            _PREFIX.size
            + HASH_BYTES * len(self.chain)
            + _SECTION.size * len(self.sections)
            + _CHECKSUM.size * (checksums + 1)
            + len(self._description())
        )

    def _description(self) -> bytes:
        if self.magic == CHUNK_MAGIC:
            return b""
        tensors = [
            [one.layer, one.name, one.dtype, list(one.shape), one.offset] for one in self.tensors
        ]
        record: dict[str, Any] = {"first": list(self.first), "tensors": tensors}
        if self.paging:
            record["paging"] = self.paging
        return json.dumps(record, separators=(",", ":")).encode()


def checksums_of(nbytes: int) -> int:
    """Checksums of a section."""
    return -(-nbytes // CHECKED_BYTES)


def chunk_header(
    salt: int, key: int, parent: int, number: int, pool: int, nbytes: int
) -> FileHeader:
    """The header of chunk ``number`` of a sequence, whose block in ``pool`` has ``nbytes``."""
    sections = (
        FileSection(TOKENS_SECTION, 0, CHUNK_BYTES),
        FileSection(BLOCK_SECTION, pool, nbytes),
    )
    length = (number + 1) * CHUNK_POSITIONS
    return FileHeader(CHUNK_MAGIC, salt, key, parent, length, pool, (), sections).placed()


def point_header(
    salt: int,
    key: int,
    parent: int,
    length: int,
    chain: Sequence[int],
    first: Sequence[int],
    tensors: Sequence[PointTensor],
    recurrent: int,
    partial: Sequence[int],
    paging: str = "",
) -> FileHeader:
    """The header of a point with ``recurrent`` bytes of tensors and, of each pool, ``partial``
    bytes of the block that is not full; ``paging``: see :class:`FileHeader`."""
    blocks = (
        FileSection(BLOCK_SECTION, pool, nbytes) for pool, nbytes in enumerate(partial) if nbytes
    )
    sections = [FileSection(TOKENS_SECTION, 0, length * TOKEN_BYTES), *blocks]
    if recurrent:
        sections.append(FileSection(RECURRENT_SECTION, 0, recurrent))
    if paging:
        sections.append(FileSection(RESIDENCY_SECTION, 0, residency_bytes(length)))
    return FileHeader(
        magic=POINT_MAGIC,
        salt=salt,
        key=key,
        parent=parent,
        length=length,
        chain=tuple(chain),
        sections=tuple(sections),
        first=tuple(first),
        tensors=tuple(tensors),
        paging=paging,
    ).placed()


def residency_bytes(length: int) -> int:
    """Bytes of what a point after ``length`` tokens remembers of its chunks, if it was paged."""
    return chunks_for(length) * KEPT_CHUNK_BYTES


def header_bytes_of(beginning: bytes) -> int:
    """The size of the header that a file begins with. Raises :class:`DamagedFile`."""
    if len(beginning) < _PREFIX.size:
        raise DamagedFile("it is too short")
    magic, version, size = _PREFIX.unpack_from(beginning)[:3]
    if magic not in (CHUNK_MAGIC, POINT_MAGIC):
        raise DamagedFile("it does not begin like a file of the prefix cache")
    if version != CACHE_FORMAT:
        raise DamagedFile(f"its format is {version}, not {CACHE_FORMAT}")
    if not _PREFIX.size < size <= MAX_HEADER_BYTES:
        raise DamagedFile(f"its header cannot have {size} bytes")
    return int(size)


def decode(text: bytes, file_bytes: int) -> FileHeader:
    """The header in ``text``, which are its bytes, of a file of ``file_bytes`` bytes.

    Raises :class:`DamagedFile` if anything disagrees.
    """
    if header_bytes_of(text) != len(text):
        raise DamagedFile("its header is cut off")
    (crc,) = _CHECKSUM.unpack(text[-_CHECKSUM.size :])
    if zlib.crc32(text[: -_CHECKSUM.size]) != crc:
        raise DamagedFile("the checksum of its header is wrong")
    magic, _, size, total, salt, key, parent, length, pool, chunks, sections, described = (
        _PREFIX.unpack_from(text)
    )
    if total != file_bytes:
        raise DamagedFile(f"it has {file_bytes} bytes, its header says {total}")
    try:
        chain, table, description = _parts(text, chunks, sections, described)
    except struct.error:
        raise DamagedFile("its header is cut off") from None
    first, tensors, paging = _described(magic, description)
    header = FileHeader(
        magic=magic,
        salt=int.from_bytes(salt, "big"),
        key=int.from_bytes(key, "big"),
        parent=int.from_bytes(parent, "big"),
        length=length,
        pool=pool,
        chain=chain,
        sections=table,
        first=first,
        tensors=tensors,
        paging=paging,
        header_bytes=size,
        file_bytes=total,
    )
    if header.placed().sections != tuple(
        replace(one, checksums=(0,) * len(one.checksums)) for one in header.sections
    ):
        raise DamagedFile("its sections are not where they belong")
    return header


def _parts(
    text: bytes, chunks: int, sections: int, described: int
) -> tuple[tuple[int, ...], tuple[FileSection, ...], bytes]:
    """Chain, sections and description behind the prefix of a header."""
    position = _PREFIX.size + HASH_BYTES * chunks
    chain = tuple(unpack(text[_PREFIX.size : position]))
    entries = [
        _SECTION.unpack_from(text, position + index * _SECTION.size) for index in range(sections)
    ]
    position += sections * _SECTION.size
    table = []
    for kind, pool, offset, nbytes in entries:
        crcs = struct.unpack_from(f"<{checksums_of(nbytes)}I", text, position)
        position += _CHECKSUM.size * len(crcs)
        table.append(FileSection(kind, pool, nbytes, offset, crcs))
    description = text[position : position + described]
    if position + described + _CHECKSUM.size != len(text):
        raise DamagedFile("its header has another size than its parts")
    return chain, tuple(table), description


def _described(
    magic: bytes, description: bytes
) -> tuple[tuple[int, ...], tuple[PointTensor, ...], str]:
    """``first``, ``tensors`` and ``paging`` of a point."""
    if magic == CHUNK_MAGIC:
        return (), (), ""
    try:
        record: Any = json.loads(description)
        tensors = tuple(
            PointTensor(layer, name, dtype, tuple(shape), offset)
            for layer, name, dtype, shape, offset in record["tensors"]
        )
        first, paging = tuple(record["first"]), str(record.get("paging", ""))
        paging.encode()
        numbers = (*first, *(n for one in tensors for n in (one.layer, *one.shape, one.offset)))
        words = (word for one in tensors for word in (one.name, one.dtype))
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a number is none")
        if not all(type(word) is str for word in words):
            raise ValueError("a word is none")
        return first, tensors, paging
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFile(f"the description in its header cannot be read: {error}") from None

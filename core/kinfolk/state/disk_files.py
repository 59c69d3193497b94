"""Reading and writing of single files of the prefix cache: whole or not at all. Torch-free.

A file is written under a temporary name, flushed to the disk and renamed. While it is written, its
writer holds a lock on it, which the system takes away when the process dies: so a temporary file
that can be locked was left behind, and goes.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from kinfolk.state.chain_hash import chunk_hashes, hex_of, next_hash
from kinfolk.state.disk_format import (
    BLOCK_SECTION,
    CHECKED_BYTES,
    CHUNK_MAGIC,
    POINT_MAGIC,
    TOKENS_SECTION,
    DamagedFile,
    FileHeader,
    FileSection,
    decode,
    header_bytes_of,
)
from kinfolk.state.hashed_tokens import CHUNK_BYTES
from kinfolk.types import CHUNK_POSITIONS

Scattered = bytes | memoryview | Sequence[memoryview]
"""Bytes of a section in one piece, or in several one after the other."""

Payload = Mapping[tuple[int, int], Scattered]
"""The bytes of each section, by kind and pool."""

TEMPORARY: Final = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")
_FIRST_READ: Final = 1 << 14
"""Bytes read at once in the hope that they are the whole header."""


def nbytes_of(data: Scattered) -> int:
    return sum(part.nbytes for part in _parts(data))


def _parts(data: Scattered) -> list[memoryview]:
    parts = [data] if isinstance(data, bytes | memoryview) else data
    return [memoryview(part).cast("B") for part in parts]


def _checked(data: Scattered) -> Iterator[list[memoryview]]:
    """The pieces of each MiB, which share a checksum."""
    pieces: list[memoryview] = []
    room = CHECKED_BYTES
    for part in _parts(data):
        rest = part
        while rest:
            pieces.append(rest[:room])
            rest = rest[room:]
            room -= len(pieces[-1])
            if not room:
                yield pieces
                pieces, room = [], CHECKED_BYTES
    if pieces:
        yield pieces


# -- writing --------------------------------------------------------------------------------------


def write_file(path: Path, fill: Callable[[int], None]) -> None:
    """Create or replace a file that ``fill`` writes to a descriptor.

    Its bytes are on the disk before it has its name; its name is once the folder was flushed too.
    """
    while True:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink == 0:  # another process took it for one left behind
                continue
            fill(file)
            os.fsync(file)
            os.replace(temporary, path)
            return
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)


def write_entry(path: Path, header: FileHeader, payload: Payload) -> None:
    """Write a chunk or a point; ``payload`` has the bytes of every section."""

    def fill(file: int) -> None:
        sections = []
        for section in header.sections:
            data = payload[section.kind, section.pool]
            assert nbytes_of(data) == section.nbytes, (section, nbytes_of(data))
            crcs, position = [], section.offset
            for pieces in _checked(data):
                crc = 0
                for piece in pieces:
                    crc = zlib.crc32(piece, crc)
                    _write_all(file, piece, position)
                    position += len(piece)
                crcs.append(crc)
            sections.append(replace(section, checksums=tuple(crcs)))
        _write_all(file, memoryview(replace(header, sections=tuple(sections)).encode()), 0)

    write_file(path, fill)


def write_text(path: Path, text: str) -> None:
    """Write a small file."""
    write_file(path, lambda file: _write_all(file, memoryview(text.encode()), 0))


def flush_folder(folder: Path) -> None:
    """Flush the names of the files in a folder."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_if_left_behind(temporary: Path) -> None:
    """Remove a temporary file, unless the process that writes it is alive."""
    try:
        file = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink(missing_ok=True)
    except OSError:
        return
    finally:
        os.close(file)


def _write_all(file: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(file, data, position)
        position, data = position + written, data[written:]


# -- reading --------------------------------------------------------------------------------------


class EntryFile:
    """An open chunk or point: ``header``, and the bytes of its sections on demand."""

    def __init__(self, file: int) -> None:
        self._file = file
        size = os.fstat(file).st_size
        text = os.pread(file, _FIRST_READ, 0)
        wanted = header_bytes_of(text)
        if wanted > len(text):
            text += os.pread(file, wanted - len(text), len(text))
        self.header = decode(text[:wanted], size)

    def read(self, kind: int, pool: int, target: Scattered) -> None:
        """Read a section into ``target``, which has its size. Raises :class:`DamagedFile`."""
        for read in self.parts(kind, pool, target):
            read()

    def parts(self, kind: int, pool: int, target: Scattered) -> list[Callable[[], None]]:
        """The reading of a section into ``target``, MiB by MiB: calls in any order, also at once.
        Each raises :class:`DamagedFile`, and so does this one for a target of another size."""
        section = self._section(kind, pool)
        if nbytes_of(target) != section.nbytes:
            raise DamagedFile(f"a section has {section.nbytes} bytes, not {nbytes_of(target)}")
        checked = zip(_checked(target), section.checksums, strict=True)
        return [
            partial(self._read_part, number, section.offset + number * CHECKED_BYTES, *part)
            for number, part in enumerate(checked)
        ]

    def _read_part(
        self, number: int, position: int, pieces: Sequence[memoryview], wanted: int
    ) -> None:
        crc = 0
        for piece in pieces:
            _read_all(self._file, piece, position)
            crc = zlib.crc32(piece, crc)
            position += len(piece)
        if crc != wanted:
            raise DamagedFile(f"the checksum of MiB {number} is wrong")

    def section_bytes(self, kind: int, pool: int = 0) -> memoryview:
        """A section in memory of its own."""
        target = np.empty(self._section(kind, pool).nbytes, np.uint8).data
        self.read(kind, pool, target)
        return target

    def tokens(self) -> bytes:
        """The packed tokens, which were hashed again: those of a chunk, or all before a point."""
        header = self.header
        packed = bytes(self.section_bytes(TOKENS_SECTION))
        chain = header.chain
        if header.magic == POINT_MAGIC and chain != tuple(
            chunk_hashes(header.root, packed, CHUNK_BYTES)
        ):
            raise DamagedFile("its tokens have other hashes than its chunks")
        if next_hash(header.parent, packed[len(chain) * CHUNK_BYTES :]) != header.key:
            raise DamagedFile("its tokens have another hash")
        return packed

    def check(self) -> None:
        """Read and check every section. Raises :class:`DamagedFile`."""
        self.tokens()
        for section in self.header.sections:
            self.section_bytes(section.kind, section.pool)

    def _section(self, kind: int, pool: int) -> FileSection:
        section = self.header.section(kind, pool)
        if section is None:
            raise DamagedFile(f"it has no section of kind {kind} and pool {pool}")
        return section


@contextmanager
def open_chunk(path: Path, salt: int, key: int, pool: int) -> Iterator[EntryFile]:
    """The chunk ``key`` of a pool. Raises :class:`DamagedFile` if the file is another's, and
    :class:`OSError`."""
    with _opened(path) as entry:
        header = entry.header
        _check(header, CHUNK_MAGIC, salt, key)
        if header.pool != pool or header.section(BLOCK_SECTION, pool) is None:
            raise DamagedFile(f"it belongs to pool {header.pool}, not to pool {pool}")
        yield entry


@contextmanager
def open_point(path: Path, salt: int, key: int) -> Iterator[EntryFile]:
    """The point ``key``. Raises :class:`DamagedFile` if the file is another's, and
    :class:`OSError`."""
    with _opened(path) as entry:
        header = entry.header
        _check(header, POINT_MAGIC, salt, key)
        if len(header.chain) != header.length // CHUNK_POSITIONS:
            raise DamagedFile(f"{header.length} tokens do not have {len(header.chain)} full chunks")
        if header.parent != (header.chain[-1] if header.chain else header.root):
            raise DamagedFile("its parent is not its last full chunk")
        yield entry


def _check(header: FileHeader, magic: bytes, salt: int, key: int) -> None:
    if header.magic != magic:
        raise DamagedFile("it is a file of another kind")
    if header.salt != salt:
        raise DamagedFile(f"it belongs to {hex_of(header.salt)}")
    if header.key != key:
        raise DamagedFile(f"it is {hex_of(header.key)}")


@contextmanager
def _opened(path: Path) -> Iterator[EntryFile]:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise DamagedFile("it is no file")
        yield EntryFile(file)
    finally:
        os.close(file)


def _read_all(file: int, target: memoryview, position: int) -> None:
    while target:
        count = os.preadv(file, [target], position)
        if count == 0:
            raise DamagedFile("it is cut off")
        position, target = position + count, target[count:]


# -- one writer at a time -------------------------------------------------------------------------


class FolderLock:
    """The right to write below a folder, of one process at a time.

    The file holds a counter that each holder increments, so that a holder knows whether another
    process may have changed anything since it held the lock the last time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._last = -1
        self.changed = True
        """Whether another process held the lock, since whoever looks at the folder said false."""

    @property
    def held(self) -> bool:
        return self._file >= 0

    def try_acquire(self) -> bool:
        """Take the lock, or return false because another holds it. Raises :class:`OSError`."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if os.fstat(file).st_nlink == 0:
                return False
            count = int.from_bytes(os.pread(file, 8, 0), "little")
            os.pwrite(file, ((count + 1) % 2**64).to_bytes(8, "little"), 0)
            self.changed |= count != self._last
            self._last = (count + 1) % 2**64
            self._file, file = file, -1
            return True
        finally:
            if file >= 0:
                os.close(file)

    def release(self) -> None:
        if self._file >= 0:
            # Not by closing alone: a child that was forked meanwhile has the file open too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1

"""The folder of one salt: its paths, what is in it, names and hits. Torch-free.

``<root>/<salt>/`` has ``salt.json``, which says what the entries belong to,
``chunks/<hash>-<pool>``, ``points/<hash>``, ``names/<name>`` with the hash of a point, and
``hits/<hash>``: one byte for each hit of a point, and the time of the last one. Anything else is
foreign and never touched.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ELOOP
from pathlib import Path
from typing import Final

from kinfolk.checked import NAME
from kinfolk.state.cache_salt import CACHE_FORMAT, SaltRecord
from kinfolk.state.chain_hash import HASH_BYTES, hex_of, pack, unpack
from kinfolk.state.disk_files import (
    TEMPORARY,
    flush_folder,
    open_point,
    remove_if_left_behind,
    write_text,
)
from kinfolk.state.disk_format import DamagedFile, FileHeader

FOLDER_MODE: Final = 0o700
MAX_HITS: Final = 255
"""Hits that are counted."""

MAX_NAME_LENGTH: Final = 100
NAME_RULE_ON_DISK: Final = (
    "a name is made of letters, digits, '.', '_' and '-', begins with a letter or a digit, has at "
    f"most {MAX_NAME_LENGTH} characters and does not end in .tmp"
)
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_CHUNK: Final = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,3})")
_PARTS: Final = ("chunks", "points", "names", "hits")
_RECORD: Final = "salt.json"
_UNREADABLE_JSON: Final = (ValueError, TypeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class PointInfo:
    """What the header of a point says.

    ``key`` is the hash that names it, ``parent`` the hash of its full chunks, ``length`` its
    tokens, ``first`` the first chunk that it needs of each pool, ``nbytes`` the size of its file,
    ``paging`` what its sequence was paged by if it missed something.
    """

    salt: int
    key: int
    parent: int
    length: int
    first: tuple[int, ...]
    packed_chain: bytes
    nbytes: int
    paging: str = ""

    @classmethod
    def of(cls, header: FileHeader) -> PointInfo:
        chain = pack(list(header.chain))
        return cls(
            salt=header.salt,
            key=header.key,
            parent=header.parent,
            length=header.length,
            first=header.first,
            packed_chain=chain,
            nbytes=header.file_bytes,
            paging=sys.intern(header.paging),
        )

    @property
    def chain(self) -> list[int]:
        """The hash of each full chunk."""
        return unpack(self.packed_chain)

    @property
    def full_chunks(self) -> int:
        return len(self.packed_chain) // HASH_BYTES

    def chunk(self, number: int) -> int:
        """The hash of one full chunk."""
        start = number * HASH_BYTES
        return int.from_bytes(self.packed_chain[start : start + HASH_BYTES], "big")

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Hash and pool of each file of a chunk that it needs."""
        chain = self.chain
        for pool, first in enumerate(self.first):
            for key in chain[first:]:
                yield key, pool


@dataclass(frozen=True, slots=True)
class Hits:
    """How often a point was read, and when last, in seconds since 1970."""

    count: int
    used: float


@dataclass(slots=True)
class Contents:
    """Entries of one folder: bytes by hash and pool of a chunk, points by hash, points by name.

    ``damaged`` are files that are no entries, with the reason, which is empty for the name of a
    damaged point; ``record_bytes`` those of the folder's record. ``unread`` are files, with their
    bytes, and folders that could not be opened now: something may be missing here that is there.
    """

    chunks: dict[tuple[int, int], int] = field(default_factory=dict)
    points: dict[int, PointInfo] = field(default_factory=dict)
    by_parent: dict[int, tuple[PointInfo, ...]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    record_bytes: int = 0
    unread: dict[Path, int] = field(default_factory=dict)

    def add(self, point: PointInfo) -> None:
        self.remove(point.key)
        self.points[point.key] = point
        beside = (*self.by_parent.get(point.parent, ()), point)
        # The longest first. Another thread may be reading: it has the old tuple or the new one.
        self.by_parent[point.parent] = tuple(sorted(beside, key=lambda one: -one.length))

    def remove(self, key: int) -> PointInfo | None:
        point = self.points.pop(key, None)
        if point is not None:
            beside = tuple(one for one in self.by_parent[point.parent] if one.key != key)
            self.by_parent[point.parent] = beside
            if not beside:
                del self.by_parent[point.parent]
        return point

    def named(self) -> set[int]:
        """The points that have a name."""
        return set(self.names.values())


class SaltFolder:
    """The folder of one salt below ``root``."""

    def __init__(self, root: Path, salt: int) -> None:
        self.salt = salt
        self.path = root / hex_of(salt)

    def chunk(self, key: int, pool: int) -> Path:
        return self.path / "chunks" / f"{hex_of(key)}-{pool}"

    def point(self, key: int) -> Path:
        return self.path / "points" / hex_of(key)

    def name(self, name: str) -> Path:
        return self.path / "names" / name

    def hits(self, key: int) -> Path:
        return self.path / "hits" / hex_of(key)

    @property
    def chunks_path(self) -> Path:
        return self.path / "chunks"

    @property
    def points_path(self) -> Path:
        return self.path / "points"

    # -- the folder itself

    def create(self, record: SaltRecord) -> None:
        """Make what is missing, for the user alone. Raises :class:`OSError`."""
        if self.path.is_symlink():
            raise OSError(ELOOP, "a symbolic link in place of a folder", str(self.path))
        for folder in (self.path.parent, self.path, *(self.path / part for part in _PARTS)):
            if not folder.is_dir():
                folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o777 != FOLDER_MODE:
                folder.chmod(FOLDER_MODE)
        if self.record() is None:
            write_text(self.path / _RECORD, record.to_json())

    def record(self) -> SaltRecord | None:
        """What the entries belong to; ``None`` if the record is missing or damaged."""
        try:
            record = SaltRecord.from_json((self.path / _RECORD).read_text())
        except (OSError, *_UNREADABLE_JSON):
            return None
        return record if record.salt == self.salt else None

    def is_newer(self) -> bool:
        """Whether a later version of kinfolk made the folder, in a format that is not known."""
        try:
            record = json.loads((self.path / _RECORD).read_text())
            return int(record["format"]) > CACHE_FORMAT
        except (OSError, *_UNREADABLE_JSON):
            return False

    def opaque(self) -> Contents:
        """The contents of a folder whose format is not known: nothing but bytes."""
        found = Contents()
        for folder in (self.path, *(self.path / part for part in _PARTS)):
            found.record_bytes += sum(_size(file) or 0 for file in _files(folder))
        return found

    def record_bytes(self) -> int:
        try:
            return (self.path / _RECORD).stat().st_size
        except OSError:
            return 0

    def remove_if_empty(self) -> None:
        """Remove the folder if nothing but its record is in it."""
        for part in _PARTS:
            _remove_folder(self.path / part)
        if {one.name for one in _files(self.path)} <= {_RECORD}:
            try:
                if not any(one.is_dir() for one in os.scandir(self.path)):
                    (self.path / _RECORD).unlink(missing_ok=True)
            except OSError:
                return
            _remove_folder(self.path)

    # -- contents

    def scan(self, known: Contents | None = None) -> Contents:
        """All entries, by headers only. ``known`` from an earlier scan are not read again, for
        files never change. Temporary files that a dead process left behind go.

        Entries whose header does not fit are listed as ``damaged``.
        """
        found = Contents(record_bytes=self.record_bytes())
        for file in self._entries("chunks", found):
            if match := _CHUNK.fullmatch(file.name):
                nbytes = _size(file)
                if nbytes is not None:
                    found.chunks[int(match[1], 16), int(match[2])] = nbytes
        for file in self._entries("points", found):
            if not _HASH.fullmatch(file.name):
                continue
            key = int(file.name, 16)
            if known is not None and key in known.points:
                found.add(known.points[key])
                continue
            try:
                with open_point(Path(file.path), self.salt, key) as entry:
                    found.add(PointInfo.of(entry.header))
            except DamagedFile as error:
                found.damaged.append((Path(file.path), str(error)))
            except FileNotFoundError:
                continue  # another process has just removed it
            except OSError:
                found.unread[Path(file.path)] = _size(file) or 0
        self._scan_names(found)
        for _ in self._entries("", found):
            pass  # only temporary files matter here, and they are gone
        for file in self._entries("hits", found):
            has_point = not _HASH.fullmatch(file.name) or int(file.name, 16) in found.points
            if not has_point and not found.unread:
                with suppress(OSError):
                    Path(file.path).unlink()
        return found

    def _scan_names(self, found: Contents) -> None:
        gone = {int(path.name, 16) for path, _ in found.damaged}
        for file in self._entries("names", found):
            if not is_name(file.name):
                continue
            try:
                named = self._read_name(file.name)
            except FileNotFoundError:
                continue
            except OSError:
                found.unread[Path(file.path)] = _size(file) or 0
                continue
            if named in found.points:
                found.names[file.name] = named
            elif not found.unread:
                reason = "" if named in gone else "it names no point that is there"
                found.damaged.append((Path(file.path), reason))

    def _entries(self, part: str, found: Contents) -> Iterator[os.DirEntry[str]]:
        folder = self.path / part
        try:
            files = [one for one in os.scandir(folder) if one.is_file(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            found.unread[folder] = 0
            return
        for file in files:
            if TEMPORARY.fullmatch(file.name):
                remove_if_left_behind(Path(file.path))
            else:
                yield file

    # -- hits

    def hit(self, key: int) -> None:
        """Count a hit; its time is that of the file. Several processes may do so at once."""
        if not self.point(key).exists():
            return  # another process has removed it
        try:
            file = os.open(self.hits(key), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            return
        try:
            if os.fstat(file).st_size < MAX_HITS:
                os.write(file, b"\n")
            else:
                os.utime(file)
        except OSError:
            return
        finally:
            os.close(file)

    def hits_of(self, key: int) -> Hits:
        """The hits of a point; without any, it was used when it was written."""
        for path in (self.hits(key), self.point(key)):
            try:
                found = path.stat()
            except OSError:
                continue
            return Hits(found.st_size if path.parent.name == "hits" else 0, found.st_mtime)
        return Hits(0, 0.0)

    # -- names

    def write_name(self, name: str, key: int) -> None:
        """Give a point a name, which another point may have had. Raises :class:`OSError`."""
        write_text(self.name(name), _name_text(name, key))
        flush_folder(self.path / "names")

    def _read_name(self, name: str) -> int | None:
        """The point of a name, ``None`` if the file is damaged. Raises :class:`OSError`."""
        try:
            text = self.name(name).read_text()
            key = int(text.partition(" ")[0], 16)
        except ValueError:
            return None
        return key if text == _name_text(name, key) else None

    # -- removing

    def remove_point(self, key: int, names: Iterable[str] = ()) -> None:
        """Remove the file of a point, its hits and names. It does not matter if they are gone."""
        for path in (self.point(key), self.hits(key), *map(self.name, names)):
            path.unlink(missing_ok=True)

    def remove_chunk(self, key: int, pool: int) -> None:
        self.chunk(key, pool).unlink(missing_ok=True)


def salt_folders(root: Path) -> list[SaltFolder]:
    """The folders below ``root`` that are named like a salt."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        SaltFolder(root, int(entry.name, 16))
        for entry in entries
        if _HASH.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
    ]


def is_name(name: str) -> bool:
    """Whether a point can have the name."""
    fits = NAME.fullmatch(name) is not None and len(name) <= MAX_NAME_LENGTH
    return fits and not name.endswith(".tmp")


def _name_text(name: str, key: int) -> str:
    return f"{hex_of(key)} {zlib.crc32(f'{name} {hex_of(key)}'.encode()):08x}\n"


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        yield from (one for one in os.scandir(folder) if one.is_file(follow_symlinks=False))
    except OSError:
        return


def _size(file: os.DirEntry[str]) -> int | None:
    try:
        return file.stat(follow_symlinks=False).st_size
    except OSError:
        return None


def _remove_folder(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return

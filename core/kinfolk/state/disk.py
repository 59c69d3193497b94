"""The disk tier of the prefix cache: points and their chunks below one folder. Torch-free.

A point is the state of a sequence after a number of tokens: its recurrent tensors, its last chunk
if that is not full, and the hashes of the chunks before, which are files of their own and may
belong to many points. ``docs/cache_format.md`` describes files and folders.

:class:`DiskCache` is used by one thread (:mod:`kinfolk.state.disk_thread`); :meth:`DiskCache.find`
and the other look-ups in memory may be called by another. Nothing raises for what is on the disk:
an entry that does not fit is dropped with one warning, and the cache goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EACCES, EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM, EPERM, EROFS
from pathlib import Path
from typing import Final

from kinfolk.errors import DISK_FULL, CapacityError
from kinfolk.state.cache_salt import SaltRecord
from kinfolk.state.chain_hash import root
from kinfolk.state.disk_files import (
    FolderLock,
    Payload,
    Scattered,
    flush_folder,
    nbytes_of,
    open_point,
    write_entry,
)
from kinfolk.state.disk_folder import NAME_RULE_ON_DISK, Contents, PointInfo, SaltFolder, is_name
from kinfolk.state.disk_format import (
    BLOCK_SECTION,
    RECURRENT_SECTION,
    RESIDENCY_SECTION,
    TOKENS_SECTION,
    DamagedFile,
    FileHeader,
    chunk_header,
    point_header,
)
from kinfolk.state.disk_index import SIDE_BYTES, FolderIndex
from kinfolk.state.disk_reading import UnreadableEntry, read_point
from kinfolk.state.disk_requests import PointRead, PointWrite, StoreReport, point_hash
from kinfolk.state.hashed_tokens import CHUNK_BYTES, TOKEN_BYTES
from kinfolk.types import CHUNK_POSITIONS

log = logging.getLogger(__name__)

PREFIX_FOLDER: Final = "prefix"
"""The cache's folder inside of ``--cache-dir``."""

LOCK_FILE: Final = "lock"
LOCK_PATIENCE: Final = 30.0
"""Seconds that a write waits for another process."""

OPEN_PATIENCE: Final = 1.0
"""Seconds that opening waits for it; then nothing is dropped or removed until the first write."""

FULL_SECONDS: Final = 600.0
"""How long a full disk is not filled further: older points make room for new ones."""

SCAN_AGAIN_SECONDS: Final = 10.0
"""Pause before a folder in which something could not be opened is read again."""

_PASSING: Final = frozenset({EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM})
_NOT_ALLOWED: Final = frozenset({EACCES, EPERM, EROFS})


class DiskCache:
    """Points of one model below ``folder``, which other models and processes share.

    ``limit`` is in bytes, for the whole folder. ``off`` says why nothing is written, or is empty.
    """

    def __init__(self, folder: Path, record: SaltRecord, limit: int) -> None:
        self.record = record
        self.limit = limit
        self.off = ""
        self.root = root(record.salt)
        self._salt = record.salt
        self._folder = SaltFolder(folder, record.salt)
        self._index = FolderIndex(folder)
        self._lock = FolderLock(folder / LOCK_FILE)
        self._warned: set[str] = set()
        self._full: tuple[float, int] | None = None  # the time of a full disk, and our bytes then
        self._unread_points, self._unread_chunks = set[int](), set[tuple[int, int]]()
        self._scan_again = 0.0

    @classmethod
    def open(cls, folder: Path, record: SaltRecord, limit: int) -> DiskCache:
        """Make the folder if it is missing, read the headers of points, drop damaged ones, and
        remove what is beyond the limit. A folder that cannot be used is a warning."""
        cache = cls(folder, record, limit)
        try:
            cache._folder.create(record)
            with cache._locked(OPEN_PATIENCE):
                cache._index.make_room(limit, 0)
        except CapacityError:
            cache._index.scan()
        except OSError as error:
            cache._turn_off(error)
        return cache

    # -- look-ups in memory

    @property
    def nbytes(self) -> int:
        """Bytes of the whole folder, those of other models too."""
        return self._index.nbytes

    def points(self) -> list[PointInfo]:
        return list(self._contents.points.values())

    def find(self, packed: bytes, chain: Sequence[int], longest: int) -> PointInfo | None:
        """The longest point of at most ``longest`` tokens that the tokens begin with, by hashes.
        :meth:`read` compares the tokens."""
        by_parent = self._contents.by_parent
        for known in reversed(chain):
            if known not in by_parent:
                continue
            for point in by_parent.get(known, ()):  # another thread may have removed them
                fits = point.length <= min(longest, len(packed) // TOKEN_BYTES)
                fits = fits and point.key not in self._unread_points
                if fits and point_hash(chain, packed, point.length) == point.key:
                    return point
        return None

    def holds(self, key: int) -> bool:
        """Whether there is the point ``key`` (:func:`point_hash`)."""
        return key in self._contents.points and key not in self._unread_points

    def missing(self, chain: Sequence[int], first: Sequence[int]) -> list[tuple[int, int]]:
        """Pool and number of each full chunk that a point needs and the disk lacks: ``chain`` are
        the hashes up to the point, ``first`` the first chunk of each pool."""
        chunks = self._contents.chunks
        return [
            (pool, number)
            for pool, start in enumerate(first)
            for number in range(start, len(chain) - 1)
            if (chain[number + 1], pool) not in chunks
            or (chain[number + 1], pool) in self._unread_chunks
        ]

    def named(self, name: str) -> PointInfo | None:
        """The point of a name."""
        return self._contents.points.get(self._contents.names.get(name, -1))

    def names(self) -> dict[str, PointInfo]:
        contents = self._contents
        found = {name: contents.points.get(key) for name, key in list(contents.names.items())}
        return {name: point for name, point in found.items() if point is not None}

    @property
    def _contents(self) -> Contents:
        return self._index.of(self._salt)

    # -- writing

    def store(self, entry: PointWrite) -> StoreReport:
        """Write a point with the chunks that are missing; what is reported as stored is on the
        disk."""
        steps = self.storing(entry)
        try:
            while True:
                if not next(steps):
                    time.sleep(0.005)
        except StopIteration as end:
            report: StoreReport = end.value
            return report

    def storing(self, entry: PointWrite) -> Generator[bool, None, StoreReport]:
        """:meth:`store` in steps of one file, so that reads need not wait; false is yielded while
        another process writes. Closing the generator leaves nothing behind."""
        entry.check(self.root)
        if self.off:
            return StoreReport("dropped", reason=self.off)
        try:
            self._folder.create(self.record)
            deadline = time.monotonic() + LOCK_PATIENCE
            while not self._lock.try_acquire():
                if time.monotonic() > deadline:
                    return self._dropped(_busy(self._folder.path.parent))
                yield False
            try:
                self._folder.create(self.record)  # all may have been removed meanwhile
                self._catch_up()
                return (yield from self._store(entry))
            finally:
                self._index.kept = set()
                self._lock.release()
        except OSError as error:
            return self._failed(error)

    def _store(self, entry: PointWrite) -> Generator[bool, None, StoreReport]:
        """Write with the lock held."""
        full, rest = divmod(entry.length, CHUNK_POSITIONS)
        chain = entry.chain[: full + 1]
        key = point_hash(chain, entry.packed, entry.length)
        known = self._contents.points.get(key)
        self._forget_lost(chain, entry.first)
        missing = self.missing(chain, entry.first)
        there = self.holds(key) and self._folder.point(key).exists()
        if known is not None and not missing and there:
            self._name(entry.name, key)
            return StoreReport("known", known)
        lost = tuple(place for place in missing if place not in entry.blocks)
        if lost:
            return StoreReport("dropped", reason="chunks are no longer there", missing=lost)
        headers = {
            (pool, number): chunk_header(
                self._salt,
                chain[number + 1],
                chain[number],
                number,
                pool,
                nbytes_of(entry.blocks[pool, number]),
            )
            for pool, number in missing
        }
        pools = range(len(entry.first))
        recurrent = 0 if entry.recurrent is None else nbytes_of(entry.recurrent)
        header = point_header(
            self._salt,
            key,
            chain[full],
            entry.length,
            chain[1:],
            entry.first,
            entry.tensors,
            recurrent,
            [nbytes_of(entry.blocks[pool, full]) if rest else 0 for pool in pools],
            entry.paging,
        )
        point = PointInfo.of(header)
        self._index.kept = {(self._salt, *file) for file in point.chunks()}
        nbytes = header.file_bytes + sum(one.file_bytes for one in headers.values())
        if not self._make_room(nbytes + SIDE_BYTES):
            return self._dropped(
                f"a prefix of {entry.length} tokens needs {nbytes} bytes, more than the limit of "
                f"{self.limit} leaves beside points with names",
                "limit",
            )
        try:
            yield from self._write_chunks(entry, headers)
            self._forget_lost(chain, entry.first)
            if lost := tuple(self.missing(chain, entry.first)):
                return StoreReport("dropped", reason="chunks are no longer there", missing=lost)
            self._write_point(entry, header)
        except OSError as error:
            if error.errno in DISK_FULL:
                self._full = (time.monotonic(), self._index.nbytes)
                self._index.kept = set()
                self._index.make_room(self._index.nbytes, nbytes)
            raise
        self._index.add_point(point)
        self._unread_points.discard(key)
        self._name(entry.name, key)
        return StoreReport("stored", point, nbytes)

    def _forget_lost(self, chain: Sequence[int], first: Sequence[int]) -> None:
        """Forget files of chunks that are gone: who finds one damaged removes it at once."""
        for pool, start in enumerate(first):
            for key in chain[start + 1 :]:
                known = (key, pool) in self._contents.chunks
                if known and not self._folder.chunk(key, pool).exists():
                    self._index.remove_chunk(self._salt, key, pool)

    def _make_room(self, nbytes: int) -> bool:
        """Make room below the limit; and for some time, if the disk was full, below what there was
        then, if that is possible."""
        if self._full is not None and time.monotonic() - self._full[0] > FULL_SECONDS:
            self._full = None
            self._warned.discard("full")
        if self._full is not None:
            self._index.make_room(self._full[1], nbytes)
        return self._index.make_room(self.limit, nbytes)

    def _write_chunks(
        self, entry: PointWrite, headers: Mapping[tuple[int, int], FileHeader]
    ) -> Iterator[bool]:
        """Write chunks; new ones go again if not all can be written."""
        written: list[tuple[int, int]] = []
        try:
            for (pool, number), header in headers.items():
                path = self._folder.chunk(header.key, pool)
                tokens = entry.packed[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
                block = entry.blocks[pool, number]
                payload: Payload = {(TOKENS_SECTION, 0): tokens, (BLOCK_SECTION, pool): block}
                if (header.key, pool) not in self._contents.chunks:
                    written.append((header.key, pool))
                write_entry(path, header, payload)
                self._index.add_chunk(self._salt, header.key, pool, header.file_bytes)
                if (header.key, pool) in self._unread_chunks:
                    self._unread_chunks.remove((header.key, pool))
                    self._unread_points.clear()  # others need it too
                yield True
            if headers:
                flush_folder(self._folder.chunks_path)
        except BaseException:
            for key, pool in written:
                self._index.remove_chunk(self._salt, key, pool)
            raise

    def _write_point(self, entry: PointWrite, header: FileHeader) -> None:
        full = entry.length // CHUNK_POSITIONS
        payload: dict[tuple[int, int], Scattered] = {
            (TOKENS_SECTION, 0): entry.packed[: entry.length * TOKEN_BYTES]
        }
        for section in header.sections:
            if section.kind == BLOCK_SECTION:
                payload[BLOCK_SECTION, section.pool] = entry.blocks[section.pool, full]
            elif section.kind == RECURRENT_SECTION and entry.recurrent is not None:
                payload[RECURRENT_SECTION, 0] = entry.recurrent
            elif section.kind == RESIDENCY_SECTION:
                payload[RESIDENCY_SECTION, 0] = entry.residency
        write_entry(self._folder.point(header.key), header, payload)
        flush_folder(self._folder.points_path)

    def _name(self, name: str, key: int) -> None:
        if name:
            self._folder.write_name(name, key)
            self._contents.names[name] = key

    # -- reading

    def read(self, request: PointRead) -> bool:
        """Read a point and count the hit; false if it is gone, was damaged, or is of other tokens.

        After false, nothing that was not reported as arrived may be used.
        """
        try:
            if not read_point(self._folder, self.root, request):
                return False
        except UnreadableEntry as found:
            self._drop(request.point, found.error, found.chunk)
            return False
        self._folder.hit(request.point.key)
        return True

    def touch(self, key: int) -> None:
        """Count a hit of a point that was found in memory, so that the limit knows its value."""
        if self.holds(key):
            self._folder.hit(key)

    def tokens(self, point: PointInfo) -> bytes | None:
        """The packed tokens of a point; ``None`` if it is gone or was damaged."""
        try:
            with open_point(self._folder.point(point.key), self._salt, point.key) as file:
                return file.tokens()
        except (DamagedFile, OSError) as error:
            self._drop(point, error)
            return None

    # -- names, removing

    def give_name(self, name: str, key: int) -> bool:
        """Name a point, which the limit then never removes; false if the point is gone.

        Raises :class:`ValueError` for a name that cannot be, :class:`CapacityError` if another
        process holds the folder, :class:`OSError`.
        """
        if not is_name(name):
            raise ValueError(f"{name!r} is no name: {NAME_RULE_ON_DISK}")
        with self._locked():
            if key not in self._contents.points:
                return False
            self._name(name, key)
            return True

    def forget_name(self, name: str) -> bool:
        """Take a name away; its point stays until the limit removes it. False if there is none."""
        with self._locked():
            if self._contents.names.pop(name, None) is None:
                return False
            self._folder.name(name).unlink(missing_ok=True)
            return True

    def remove(self, key: int) -> int:
        """Remove a point, its names, and chunks that no other point needs; returns the bytes that
        became free."""
        with self._locked():
            return self._index.remove_point(self._salt, key)

    def refresh(self) -> None:
        """See what other processes have written and removed."""
        with self._locked():
            pass

    def why_elsewhere(self, name: str, fits: Callable[[str], bool] | None = None) -> str:
        """Why a point that other models have under a name, or one that ``fits``, is not for this
        model, or that there is none."""
        fits = fits or name.__eq__
        found = []
        for salt, contents in list(self._index.contents.items()):
            if salt != self._salt and any(map(fits, list(contents.names))):
                record = self._index.folders[salt].record()
                whose = "a model that is not known" if record is None else record.model
                what = [] if record is None else self.record.differences(record)
                found.append(f"it belongs to {whose}" + (": " + ", ".join(what) if what else ""))
        if found:
            return f"{name!r} does not fit {self.record.model}: " + "; ".join(found)
        names = ", ".join(sorted(self._contents.names)) or "none"
        return f"there is no {name!r}; names of {self.record.model}: {names}"

    # -- what can go wrong

    @contextmanager
    def _locked(self, patience: float = LOCK_PATIENCE) -> Iterator[None]:
        """Hold the folder's lock, with the index brought up to date."""
        deadline = time.monotonic() + patience
        while not self._lock.try_acquire():
            if time.monotonic() > deadline:
                raise CapacityError(_busy(self._folder.path.parent))
            time.sleep(0.005)
        try:
            self._catch_up()
            yield
        finally:
            self._lock.release()

    def _catch_up(self) -> None:
        """Read the folder again if another process may have changed it; drop damaged entries."""
        if not self._lock.changed and not 0 < self._scan_again < time.monotonic():
            return
        self._index.scan()
        self._lock.changed = False
        unread = any(one.unread for one in self._index.contents.values())
        self._scan_again = time.monotonic() + SCAN_AGAIN_SECONDS if unread else 0.0
        self._unread_points.clear()
        self._unread_chunks.clear()
        for contents in self._index.contents.values():
            for path, reason in contents.damaged:
                if reason:
                    log.warning("%s: %s; it is dropped", path, reason)
                path.unlink(missing_ok=True)
            contents.damaged.clear()

    def _drop(
        self, point: PointInfo, error: Exception, chunk: tuple[int, int] | None = None
    ) -> None:
        """Drop a point that cannot be read, or the chunk at fault with all points that need it.

        That another process removed it is no damage. What cannot be read for another reason stays:
        if that passes, the next request may read it, else the next write replaces it.
        """
        if isinstance(error, DamagedFile):
            path = self._folder.point(point.key) if chunk is None else self._folder.chunk(*chunk)
            log.warning("%s: %s; it is dropped", path, error)
        else:
            log.info("a prefix of %d tokens cannot be read: %s", point.length, error)
        if isinstance(error, OSError) and error.errno in _PASSING:
            return
        lost = [point]
        if chunk is not None:
            lost += [one for one in self.points() if chunk in one.chunks() and one != point]
        if not isinstance(error, DamagedFile | FileNotFoundError):
            self._unread_points.update(one.key for one in lost)
            self._unread_chunks.update([] if chunk is None else [chunk])
            return
        for one in lost:
            names = [name for name, key in self._contents.names.items() if key == one.key]
            self._index.forget_point(self._salt, one.key)
            with suppress(OSError):
                self._folder.remove_point(one.key, names)
        if chunk is not None:
            with suppress(OSError):
                self._index.remove_chunk(self._salt, *chunk)
        if not self._lock.held:
            with suppress(OSError):  # taking the lock tells the others to read the folder again
                if self._lock.try_acquire():
                    self._lock.release()

    def _failed(self, error: OSError) -> StoreReport:
        """A write failed: a full disk is told once, and without permission nothing is tried
        again."""
        if error.errno in _NOT_ALLOWED:
            self._turn_off(error)
            return StoreReport("dropped", reason=self.off)
        if error.errno in DISK_FULL:
            return self._dropped(f"{self._folder.path}: {error.strerror}", "full")
        return self._dropped(f"{self._folder.path}: {error.strerror or error}")

    def _dropped(self, reason: str, kind: str = "") -> StoreReport:
        """Report a point that is not kept, with one warning for each kind or reason."""
        if (kind or reason) not in self._warned:
            self._warned.add(kind or reason)
            log.warning("a prefix is not kept: %s", reason)
        return StoreReport("dropped", reason=reason, kind=kind)

    def _turn_off(self, error: OSError) -> None:
        self.off = f"{self._folder.path.parent}: {error.strerror or error}"
        log.warning("prefixes are not kept on the disk: %s", self.off)


def _busy(folder: Path) -> str:
    return f"{folder}: another process has been writing for {LOCK_PATIENCE:.0f} seconds"

"""All entries of the cache's folder, over all salts: their bytes, and which go first. Torch-free.

Chunks that no point needs go first. Then points go, one after the other, with the chunks that only
they need: those that no other point continues, the least valuable first. The value of a point is
its tokens times its hits (and one), for each byte that would become free and each second since its
last use. A point with a name never goes.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

from kinfolk.state.disk_folder import (
    MAX_HITS,
    Contents,
    PointInfo,
    SaltFolder,
    salt_folders,
)

SIDE_BYTES: Final = MAX_HITS + 256
"""Bytes that a point may have beside its file: hits, and a name."""

FRESH_SECONDS: Final = 60.0
"""Added to the age of a point, so that the newest one is not worth everything."""

ChunkFile = tuple[int, int, int]
"""Salt, hash and pool of the file of a chunk."""


class FolderIndex:
    """Entries below ``root``, which :meth:`scan` reads; ``nbytes`` are those of all files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nbytes = 0
        self.contents: dict[int, Contents] = {}
        self.folders: dict[int, SaltFolder] = {}
        self.kept: set[ChunkFile] = set()
        """Chunks that are about to be used and never go."""
        self._needed: Counter[ChunkFile] = Counter()
        self._passing: Counter[tuple[int, int]] = Counter()

    def scan(self) -> None:
        """Read what is in the folder now."""
        known = self.contents
        folders = {one.salt: one for one in salt_folders(self.root)}
        contents = {
            salt: one.opaque() if one.is_newer() else one.scan(known.get(salt))
            for salt, one in folders.items()
        }
        self._needed, self._passing, self.nbytes = Counter(), Counter(), 0
        for found in contents.values():
            self.nbytes += found.record_bytes + sum(
                (*found.chunks.values(), *found.unread.values())
            )
            for point in found.points.values():
                self._count(point, 1)
        self.folders, self.contents = folders, contents

    def of(self, salt: int) -> Contents:
        """The entries of one salt."""
        if salt not in self.contents:
            self.contents[salt] = Contents()
            self.folders[salt] = SaltFolder(self.root, salt)
        return self.contents[salt]

    # -- changes

    def add_chunk(self, salt: int, key: int, pool: int, nbytes: int) -> None:
        chunks = self.of(salt).chunks
        self.nbytes += nbytes - chunks.get((key, pool), 0)
        chunks[key, pool] = nbytes

    def add_point(self, point: PointInfo) -> None:
        contents = self.of(point.salt)
        old = contents.points.get(point.key)
        if old is not None:
            self._count(old, -1)
        contents.add(point)
        self._count(point, 1)

    def forget_point(self, salt: int, key: int) -> PointInfo | None:
        """Forget a point and its names."""
        contents = self.of(salt)
        point = contents.remove(key)
        if point is not None:
            self._count(point, -1)
            contents.names = {name: one for name, one in contents.names.items() if one != key}
        return point

    def remove_point(self, salt: int, key: int) -> int:
        """Remove a point from the disk, with the chunks that no other needs; returns the bytes that
        became free."""
        before = self.nbytes
        contents = self.of(salt)
        names = [name for name, one in contents.names.items() if one == key]
        self.folders[salt].remove_point(key, names)
        point = self.forget_point(salt, key)
        for chunk, pool in () if point is None else point.chunks():
            file = (salt, chunk, pool)
            if not self._needed[file] and file not in self.kept:
                self.remove_chunk(*file)
        return before - self.nbytes

    def remove_orphans(self) -> int:
        """Remove chunks that no point needs; returns the bytes that became free. None go where a
        point may not have been read."""
        before = self.nbytes
        for salt, contents in self.contents.items():
            if contents.unread:
                continue
            for key, pool in list(contents.chunks):
                file = (salt, key, pool)
                if not self._needed[file] and file not in self.kept:
                    self.remove_chunk(*file)
        return before - self.nbytes

    def remove_chunk(self, salt: int, key: int, pool: int) -> None:
        self.folders[salt].remove_chunk(key, pool)
        self.nbytes -= self.of(salt).chunks.pop((key, pool), 0)

    def make_room(self, limit: int, nbytes: int) -> bool:
        """Remove as little as makes ``nbytes`` more fit below ``limit``; false, and then nothing of
        value is gone, if what never goes leaves too little room."""
        if self.nbytes + nbytes <= limit:
            return True
        self.remove_orphans()
        if nbytes and self._unremovable() + nbytes > limit:
            return False
        while self.nbytes + nbytes > limit:
            victim = self._least_valuable()
            if victim is None:
                return False
            self.remove_point(victim.salt, victim.key)
        return True

    # -- value

    def _least_valuable(self) -> PointInfo | None:
        now = time.time()
        candidates = []
        for salt, contents in self.contents.items():
            named = contents.named()
            for point in contents.points.values():
                if point.key not in named:
                    hits = self.folders[salt].hits_of(point.key)
                    age = max(0.0, now - hits.used) + FRESH_SECONDS
                    value = point.length * (1 + hits.count) / (self._frees(point) * age)
                    candidates.append((self._continued(point), value, point.key, point))
        return min(candidates)[-1] if candidates else None

    def _frees(self, point: PointInfo) -> int:
        """Bytes that become free with a point. Others share its first chunks, if any."""
        chunks = self.of(point.salt).chunks
        total = point.nbytes + SIDE_BYTES
        for pool, first in enumerate(point.first):
            for number in reversed(range(first, point.full_chunks)):
                key = point.chunk(number)
                file = (point.salt, key, pool)
                if self._needed[file] > 1 or file in self.kept:
                    break
                total += chunks.get((key, pool), 0)
        return total

    def _continued(self, point: PointInfo) -> bool:
        """Whether other points have all full chunks of this one, and more."""
        if not point.packed_chain:
            return False
        same = len(self.of(point.salt).by_parent.get(point.parent, ()))
        return self._passing[point.salt, point.parent] > same

    def _unremovable(self) -> int:
        """Bytes of named points, of chunks that are kept, and of records."""
        total = sum(contents.record_bytes for contents in self.contents.values())
        files = set(self.kept)
        for salt, contents in self.contents.items():
            for key in contents.named():
                point = contents.points[key]
                total += point.nbytes + SIDE_BYTES
                files.update((salt, *file) for file in point.chunks())
        return total + sum(
            self.contents[salt].chunks.get((key, pool), 0)
            for salt, key, pool in files
            if salt in self.contents
        )

    def _count(self, point: PointInfo, change: int) -> None:
        self.nbytes += change * (point.nbytes + SIDE_BYTES)
        for key, pool in point.chunks():
            self._needed[point.salt, key, pool] += change
        for key in point.chain:
            self._passing[point.salt, key] += change

"""Looking at the prefix cache's folder, checking it and removing from it, without a model.
Torch-free."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kinfolk.errors import CapacityError, SettingsError
from kinfolk.state.cache_salt import SaltRecord
from kinfolk.state.chain_hash import hex_of
from kinfolk.state.disk import LOCK_FILE, LOCK_PATIENCE
from kinfolk.state.disk_files import FolderLock, open_chunk, open_point
from kinfolk.state.disk_folder import Contents, Hits, PointInfo
from kinfolk.state.disk_format import DamagedFile, FileHeader
from kinfolk.state.disk_index import FolderIndex

CheckProgress = Callable[[int, int], None]
"""Callback (bytes checked so far, bytes of all files)."""

SHORT_HASH: Final = 12
"""Digits of a hash that are shown."""


@dataclass(frozen=True, slots=True)
class ListedPoint:
    """A point with its names, hits, and the bytes of its file and of all chunks that it needs."""

    info: PointInfo
    names: tuple[str, ...]
    hits: Hits
    nbytes: int


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model's entries. ``record`` is ``None`` if nothing says what they belong to; ``nbytes`` are
    of all files, chunks that no point needs included."""

    salt: int
    record: SaltRecord | None
    points: tuple[ListedPoint, ...]
    nbytes: int

    @property
    def name(self) -> str:
        """The model's name, without characters that a terminal would obey."""
        name = "unknown" if self.record is None else self.record.model
        return "".join(sign if sign.isprintable() else "?" for sign in name)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what it should be. ``chunk``: hash and pool, if it is one."""

    salt: int
    path: Path
    reason: str
    chunk: tuple[int, int] | None = None


class PrefixFolder:
    """The entries of all models below ``path``, as they were when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._index = FolderIndex(path)
        self._index.scan()

    @property
    def nbytes(self) -> int:
        return sum(model.nbytes for model in self.models())

    def models(self) -> list[ListedModel]:
        """The models by name."""
        listed = [
            ListedModel(
                salt=salt,
                record=self._index.folders[salt].record(),
                points=tuple(self._points(salt, contents)),
                nbytes=contents.record_bytes
                + sum(contents.chunks.values())
                + sum(point.nbytes for point in contents.points.values()),
            )
            for salt, contents in self._index.contents.items()
        ]
        return sorted(listed, key=lambda model: (model.name, model.salt))

    def find(self, word: str) -> ListedPoint:
        """The point with this name, or whose hash begins so. Raises :class:`SettingsError` if there
        is none, or several."""
        if not word:
            raise SettingsError("an empty word names no point")
        points = [point for model in self.models() for point in model.points]
        found = [point for point in points if word in point.names] or [
            point for point in points if hex_of(point.info.key).startswith(word.lower())
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            raise SettingsError(
                f"no point below {self.path} has the name {word!r} or a hash that begins so; "
                "'kinfolk cache ls --points' lists them"
            )
        several = ", ".join(hex_of(point.info.key)[:SHORT_HASH] for point in found[:5])
        raise SettingsError(f"{word!r} fits {len(found)} points: {several}; type more digits")

    def find_model(self, word: str) -> ListedModel:
        """The model with this name, or whose salt begins so. Raises :class:`SettingsError` if there
        is none, or several."""
        if not word:
            raise SettingsError("an empty word names no model")
        models = self.models()
        found = [model for model in models if word == model.name] or [
            model for model in models if hex_of(model.salt).startswith(word.lower())
        ]
        if len(found) == 1:
            return found[0]
        names = ", ".join(f"{one.name} ({hex_of(one.salt)[:SHORT_HASH]})" for one in found[:5])
        if found:
            raise SettingsError(f"{word!r} fits several models: {names}; name one by its salt")
        raise SettingsError(
            f"nothing below {self.path} belongs to a model {word!r}; 'kinfolk cache ls' lists them"
        )

    def header(self, point: PointInfo) -> tuple[FileHeader, bytes]:
        """The header of a point and its packed tokens. Raises :class:`SettingsError` if the file is
        damaged or gone."""
        path = self._index.folders[point.salt].point(point.key)
        try:
            with open_point(path, point.salt, point.key) as file:
                return file.header, file.tokens()
        except (DamagedFile, OSError) as error:
            raise SettingsError(f"{path}: {error}; see 'kinfolk cache verify'") from None

    def check(self, progress: CheckProgress) -> list[Damage]:
        """Read every file and check everything that can be checked. What looks damaged is looked at
        again while no process writes."""
        total, done, found = self.nbytes, 0, list[Damage]()
        for salt, contents in self._index.contents.items():
            folder = self._index.folders[salt]
            found += [Damage(salt, path, reason) for path, reason in contents.damaged if reason]
            for (key, pool), nbytes in contents.chunks.items():
                path = folder.chunk(key, pool)
                try:
                    with open_chunk(path, salt, key, pool) as file:
                        file.check()
                except FileNotFoundError:
                    pass  # the limit, or another process, has just removed it
                except (DamagedFile, OSError) as error:
                    found.append(Damage(salt, path, str(error), (key, pool)))
                done += nbytes
                progress(done, total)
            for point in contents.points.values():
                path = folder.point(point.key)
                try:
                    with open_point(path, salt, point.key) as file:
                        file.check()
                except FileNotFoundError:
                    continue
                except (DamagedFile, OSError) as error:
                    found.append(Damage(salt, path, str(error)))
                else:
                    lost = sum(chunk not in contents.chunks for chunk in point.chunks())
                    if lost:
                        found.append(Damage(salt, path, f"{lost} of its chunks are not there"))
                done += point.nbytes
                progress(done, total)
        if found:
            with suppress(CapacityError, OSError), self._locked():
                found = [one for one in found if self._is_damaged(one, unread=True)]
        return found

    def _is_damaged(self, one: Damage, *, unread: bool) -> bool:
        """Whether a file is damaged still; ``unread``: or cannot be read. With the lock held."""
        contents, folder = self._index.of(one.salt), self._index.folders[one.salt]
        if one.path in [path for path, _ in contents.damaged]:
            return True
        point = next((p for p in contents.points.values() if folder.point(p.key) == one.path), None)
        try:
            if one.chunk is not None:
                with open_chunk(one.path, one.salt, *one.chunk) as file:
                    file.check()
            elif point is not None:
                with open_point(one.path, one.salt, point.key) as file:
                    file.check()
        except DamagedFile:
            return True
        except OSError as error:
            return unread and not isinstance(error, FileNotFoundError)
        return point is not None and any(chunk not in contents.chunks for chunk in point.chunks())

    # -- removing

    def remove_damage(self, damage: list[Damage]) -> tuple[list[Damage], int]:
        """Remove damaged files and points that need them; returns those that were removed and the
        bytes that became free. What only cannot be read stays."""
        with self._locked():
            before = self._index.nbytes
            removed = [each for each in damage if self._is_damaged(each, unread=False)]
            for one in removed:
                contents = self._index.of(one.salt)
                for point in list(contents.points.values()):
                    whole = self._index.folders[one.salt].point(point.key) == one.path
                    if whole or (one.chunk is not None and one.chunk in point.chunks()):
                        self._index.remove_point(one.salt, point.key)
                if one.chunk is not None:
                    self._index.remove_chunk(one.salt, *one.chunk)
                with suppress(FileNotFoundError):
                    one.path.unlink()
            return removed, before - self._index.nbytes

    def remove(self, points: list[PointInfo]) -> int:
        """Remove points, their names, and chunks that no other point needs; returns the bytes that
        became free."""
        with self._locked():
            return sum(self._index.remove_point(one.salt, one.key) for one in points)

    def remove_models(self, salts: list[int]) -> int:
        """Remove all entries of models, and their folders if nothing foreign is in them; returns
        the bytes that became free."""
        with self._locked():
            before = self._index.nbytes
            for salt in salts:
                contents = self._index.of(salt)
                for path, _ in contents.damaged:
                    path.unlink(missing_ok=True)
                for key in list(contents.points):
                    self._index.remove_point(salt, key)
                for file in list(contents.chunks):
                    self._index.remove_chunk(salt, *file)
                self._index.folders[salt].remove_if_empty()
            return before - self._index.nbytes

    def _points(self, salt: int, contents: Contents) -> Iterator[ListedPoint]:
        folder = self._index.folders[salt]
        for point in contents.points.values():
            chunks = sum(contents.chunks.get(file, 0) for file in point.chunks())
            names = sorted(name for name, key in contents.names.items() if key == point.key)
            hits = folder.hits_of(point.key)
            yield ListedPoint(point, tuple(names), hits, point.nbytes + chunks)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that no process writes meanwhile, and read it again."""
        lock = FolderLock(self.path / LOCK_FILE)
        end = time.monotonic() + LOCK_PATIENCE
        while not lock.try_acquire():
            if time.monotonic() > end:
                raise CapacityError(
                    f"{self.path}: another process has been writing for {LOCK_PATIENCE:.0f} "
                    "seconds; try again"
                )
            time.sleep(0.01)
        try:
            self._index.scan()
            yield
        finally:
            lock.release()

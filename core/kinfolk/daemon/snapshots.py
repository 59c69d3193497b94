"""Numbered beginnings of sequences, and ranges of positions that go on from them.

The engine keeps a checkpoint behind each as long as it has room, and finds it by its tokens; if it
was dropped, the beginning is computed again. Chunks are shared, so a thin snapshot costs no more
than the chunks of its own range. With a disk they are on it too, where other processes find them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kinfolk.daemon.commands import Restore
from kinfolk.errors import EngineError, RequestError

MAX_SNAPSHOTS: Final = 64
_NAME: Final = re.compile(r"snapshot-(0|[1-9][0-9]?)(?:-from-(0|[1-9][0-9]{0,17}))?")


class SnapshotDisk(Protocol):
    """Named prefixes on the disk."""

    put: Callable[[tuple[int, ...], str, Callable[[str], None]], None]

    def tokens(self, name: str) -> tuple[int, ...] | None: ...

    def why_not(self, name: str, fits: Callable[[str], bool]) -> str: ...

    def free(self, name: str) -> bool: ...

    def lengths(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after ``tokens``. A thin one is that of the positions from ``first`` on: those
    before are in other snapshots."""

    tokens: tuple[int, ...]
    first: int | None = None


class Snapshots:
    """The snapshots of a session by their numbers, and those on ``disk``."""

    def __init__(self, disk: SnapshotDisk | None = None) -> None:
        self._known: dict[int, Snapshot] = {}
        self._disk = disk

    def check_number(self, number: int) -> None:
        if number >= MAX_SNAPSHOTS:
            raise RequestError(f"snapshots are numbered from 0 to {MAX_SNAPSHOTS - 1}")

    def put(self, number: int, snapshot: Snapshot, done: Callable[[str], None]) -> str:
        """Keep a snapshot in place of the one with its number. Returns what is to be said; if there
        is a disk that is empty, and ``done`` is called with it once, on any thread, when the
        snapshot is there or is not going to be."""
        self._known[number] = snapshot
        text = _described(number, len(snapshot.tokens), snapshot.first)

        def heard(fault: str) -> None:
            done(f"{text} kept=memory not_on_disk: {fault}" if fault else f"{text} kept=disk")

        if self._disk is None:
            return f"{text} kept=memory"
        name = _name(number, snapshot.first)
        try:
            for other in self._names(number):
                if other != name:
                    self._disk.free(other)
        except EngineError as error:
            heard(str(error))
        else:
            self._disk.put(snapshot.tokens, name, heard)
        return ""

    def free(self, number: int) -> None:
        """Raises :class:`RequestError` if there is no such snapshot."""
        known = self._known.pop(number, None) is not None
        if self._disk is not None:
            for name in {_name(number), *self._names(number)}:
                known |= self._disk.free(name)
        if not known:
            raise RequestError(f"there is no snapshot {number}")

    def check_prompt(self, restore: Restore, prompt: tuple[int, ...]) -> None:
        """Raise :class:`RequestError` unless snapshots make one beginning, and a prompt goes on
        where it ends."""
        tokens = self._restored(restore)
        if len(prompt) <= len(tokens) or prompt[: len(tokens)] != tokens:
            numbers = ", ".join(map(str, restore.numbers))
            raise RequestError(
                f"the prompt must begin with the {len(tokens)} tokens of snapshot {numbers} and go "
                f"on; it has {len(prompt)}"
            )

    def listing(self) -> str:
        found = {} if self._disk is None else _numbered(self._disk.lengths())
        found |= {n: (len(each.tokens), each.first) for n, each in self._known.items()}
        lines = [_described(number, *each) for number, each in sorted(found.items())]
        return "\n".join([f"snapshots {len(lines)}", *lines])

    def _restored(self, restore: Restore) -> tuple[int, ...]:
        """The tokens behind which a chain of snapshots ends. Each position is in one of them."""
        parts = {number: self._get(number) for number in restore.numbers}
        covered = 0
        if restore.full is not None:
            if (first := parts[restore.full].first) is not None:
                raise RequestError(
                    f"snapshot {restore.full} is thin: it begins at position {first}, and goes "
                    "behind others in RESTORE_CHAIN"
                )
            covered = len(parts[restore.full].tokens)
        ranges = []
        for number in restore.thin:
            if (first := parts[number].first) is None:
                raise RequestError(f"snapshot {number} is not thin: it goes first in RESTORE_CHAIN")
            ranges.append((first, len(parts[number].tokens)))
        for first, end in sorted(ranges):
            if first > covered:
                raise RequestError(
                    f"positions {covered} to {first - 1} are in no snapshot of the chain"
                )
            covered = max(covered, end)
        longest = max(parts, key=lambda number: len(parts[number].tokens))
        tokens = parts[longest].tokens
        for number, part in parts.items():
            if tokens[: len(part.tokens)] != part.tokens:
                raise RequestError(f"snapshots {number} and {longest} are of different texts")
        return tokens

    def _get(self, number: int) -> Snapshot:
        if number in self._known:
            return self._known[number]
        if self._disk is None:
            raise RequestError(f"there is no snapshot {number}")
        tokens = self._disk.tokens(_name(number))
        if tokens is not None:
            return Snapshot(tokens)
        for name in self._names(number):  # the look-up above has read the folder again
            tokens = self._disk.tokens(name)
            if tokens is not None:
                return Snapshot(tokens, _numbered_name(name)[1])
        why = self._disk.why_not(_name(number), lambda name: _numbered_name(name)[0] == number)
        raise RequestError(f"there is no snapshot {number}: {why}")

    def _names(self, number: int) -> list[str]:
        """The names on the disk of a snapshot."""
        names = {} if self._disk is None else self._disk.lengths()
        return [name for name in names if _numbered_name(name)[0] == number]


def _name(number: int, first: int | None = None) -> str:
    """The name of a snapshot on the disk."""
    return f"snapshot-{number}" if first is None else f"snapshot-{number}-from-{first}"


def _numbered_name(name: str) -> tuple[int | None, int | None]:
    """The number and the first position of a snapshot with a name; no number if it is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None, None
    return int(match[1]), None if match[2] is None else int(match[2])


def _numbered(lengths: dict[str, int]) -> dict[int, tuple[int, int | None]]:
    """Length and first position of those that are named like snapshots, by number."""
    found = {}
    for name, length in lengths.items():
        number, first = _numbered_name(name)
        if number is not None:
            found[number] = (length, first)
    return found


def _described(number: int, length: int, first: int | None) -> str:
    thin = "" if first is None else f" thin={first}..{length}"
    return f"snapshot={number} length={length}{thin}"

"""Named beginnings of sequences. The engine keeps a checkpoint behind each as long as it has room,
and finds it by its tokens; if it was dropped, the beginning is computed again. With a disk they are
on it too, where other processes find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kinfolk.daemon.commands import GenerateCommand, RestoreChainCommand
from kinfolk.errors import RequestError

MAX_SNAPSHOTS: Final = 64
LATER: Final = "not available in this version"
_PREFIX: Final = "snapshot-"


class SnapshotDisk(Protocol):
    """Named prefixes on the disk."""

    put: Callable[[tuple[int, ...], str], None]

    def tokens(self, name: str) -> tuple[int, ...] | None: ...

    def why_not(self, name: str) -> str: ...

    def free(self, name: str) -> bool: ...

    def lengths(self) -> dict[str, int]: ...


class Snapshots:
    """The tokens of each snapshot of a session, by its number; and those on ``disk``."""

    def __init__(self, disk: SnapshotDisk | None = None) -> None:
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._disk = disk

    def check_number(self, number: int) -> None:
        if number >= MAX_SNAPSHOTS:
            raise RequestError(f"snapshots are numbered from 0 to {MAX_SNAPSHOTS - 1}")

    def put(self, number: int, tokens: tuple[int, ...]) -> str:
        self._tokens[number] = tokens
        if self._disk is not None:
            self._disk.put(tokens, _name(number))
        return f"snapshot={number} length={len(tokens)}"

    def free(self, number: int) -> None:
        """Raises :class:`RequestError` if there is no such snapshot."""
        known = self._tokens.pop(number, None) is not None
        if self._disk is not None:
            known |= self._disk.free(_name(number))
        if not known:
            raise RequestError(f"there is no snapshot {number}")

    def check_prompt(self, number: int, prompt: tuple[int, ...]) -> None:
        """Raise :class:`RequestError` unless a prompt goes on where the snapshot ends."""
        tokens = self._tokens.get(number)
        if tokens is None and self._disk is not None:
            tokens = self._disk.tokens(_name(number))
        if tokens is None:
            why = "" if self._disk is None else f": {self._disk.why_not(_name(number))}"
            raise RequestError(f"there is no snapshot {number}{why}")
        if len(prompt) <= len(tokens) or prompt[: len(tokens)] != tokens:
            raise RequestError(
                f"the prompt must begin with the {len(tokens)} tokens of snapshot {number} and go "
                f"on; it has {len(prompt)}"
            )

    def listing(self) -> str:
        lengths = {} if self._disk is None else _numbered(self._disk.lengths())
        lengths |= {number: len(tokens) for number, tokens in self._tokens.items()}
        lines = [f"snapshot={n} length={length}" for n, length in sorted(lengths.items())]
        return "\n".join([f"snapshots {len(lines)}", *lines])


def _name(number: int) -> str:
    """The name of a snapshot on the disk."""
    return f"{_PREFIX}{number}"


def _numbered(lengths: dict[str, int]) -> dict[int, int]:
    """Those that are named like snapshots, by number."""
    return {
        int(digits): length
        for name, length in lengths.items()
        if name.startswith(_PREFIX) and (digits := name.removeprefix(_PREFIX)).isdecimal()
    }


def unchained(command: RestoreChainCommand) -> GenerateCommand:
    """The line that a chain without ranges of positions is."""
    if command.thin:
        raise RequestError(f"snapshots of ranges of positions are {LATER}")
    return GenerateCommand(
        command.path, command.total, restore=command.thick, sampling=command.sampling
    )

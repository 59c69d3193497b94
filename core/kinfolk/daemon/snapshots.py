"""Named beginnings of sequences. The engine keeps a checkpoint behind each as long as it has room,
and finds it by its tokens; if it was dropped, the beginning is computed again."""

from __future__ import annotations

from typing import Final

from kinfolk.daemon.commands import GenerateCommand, RestoreChainCommand
from kinfolk.errors import RequestError

MAX_SNAPSHOTS: Final = 64
LATER: Final = "not available in this version"


class Snapshots:
    """The tokens of each snapshot of a session, by its number."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[int, ...]] = {}

    def check_number(self, number: int) -> None:
        if number >= MAX_SNAPSHOTS:
            raise RequestError(f"snapshots are numbered from 0 to {MAX_SNAPSHOTS - 1}")

    def put(self, number: int, tokens: tuple[int, ...]) -> str:
        self._tokens[number] = tokens
        return f"snapshot={number} length={len(tokens)}"

    def free(self, number: int) -> None:
        """Raises :class:`RequestError` if there is no such snapshot."""
        if self._tokens.pop(number, None) is None:
            raise RequestError(f"there is no snapshot {number}")

    def check_prompt(self, number: int, prompt: tuple[int, ...]) -> None:
        """Raise :class:`RequestError` unless a prompt goes on where the snapshot ends."""
        tokens = self._tokens.get(number)
        if tokens is None:
            raise RequestError(f"there is no snapshot {number}")
        if len(prompt) <= len(tokens) or prompt[: len(tokens)] != tokens:
            raise RequestError(
                f"the prompt must begin with the {len(tokens)} tokens of snapshot {number} and go "
                f"on; it has {len(prompt)}"
            )

    def listing(self) -> str:
        lines = [f"snapshot={n} length={len(t)}" for n, t in sorted(self._tokens.items())]
        return "\n".join([f"snapshots {len(lines)}", *lines])


def unchained(command: RestoreChainCommand) -> GenerateCommand:
    """The line that a chain without ranges of positions is."""
    if command.thin:
        raise RequestError(f"snapshots of ranges of positions are {LATER}")
    return GenerateCommand(
        command.path, command.total, restore=command.thick, sampling=command.sampling
    )

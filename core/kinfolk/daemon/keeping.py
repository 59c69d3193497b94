"""``SNAPSHOT`` and ``SNAPSHOT_THIN`` of a session: a line that waits for the disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kinfolk.daemon.commands import SnapshotCommand
from kinfolk.daemon.served import Served
from kinfolk.daemon.snapshots import Snapshot, Snapshots
from kinfolk.daemon.surroundings import TurnEngine
from kinfolk.errors import RequestError


class Keeping:
    """Takes one snapshot after the other. ``post`` calls what it gets on the session's thread, and
    ``go_on`` is called there when a snapshot is done.

    ``waits``: a snapshot was taken, and is not on the disk yet or was not replied to.
    """

    def __init__(
        self,
        engine: TurnEngine,
        snapshots: Snapshots,
        post: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        self.waits = False
        self._engine = engine
        self._snapshots = snapshots
        self._post = post
        self._go_on = go_on
        self._text = ""

    def begin(self, command: SnapshotCommand, served: Served) -> None:
        """Take a snapshot of a held request. Raises :class:`KinfolkError` if that cannot be, and
        then changes nothing."""
        first, end = command.thin or (None, None)
        if not self._engine.keep(served.key, end):
            raise RequestError("there is no room for a checkpoint (--checkpoints, --context)")
        tokens = (*served.request.prompt, *served.tokens[:-1])[:end]
        self.waits = True
        self._text = self.put(command.number, Snapshot(tokens, first), self._done)

    def put(self, number: int, snapshot: Snapshot, done: Callable[[str], None]) -> str:
        """Keep a snapshot. Returns what to say; if that is empty, ``done`` is called with it later,
        on the session's thread."""
        return self._snapshots.put(number, snapshot, lambda text: self._post(partial(done, text)))

    def reply(self) -> str:
        """What to say about the last snapshot; empty until it is known. Ends the wait."""
        self.waits = not self._text
        return self._text

    def _done(self, text: str) -> None:
        self._text = text
        self._go_on()

"""What a session is told, and what it uses of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kinfolk.daemon.compressing import SessionCompressor
from kinfolk.daemon.snapshots import SnapshotDisk
from kinfolk.sched.events import Event, Pause
from kinfolk.sched.request import Request
from kinfolk.sched.view import SequenceView
from kinfolk.types import Parkable


class TurnEngine(Protocol):
    """What a session uses of an engine. Listeners are called on the engine's thread."""

    def submit(
        self,
        request: Request,
        on_event: Callable[[Event], None],
        on_pause: Callable[[Pause], None],
    ) -> object: ...

    def grant(self, request_id: str, tokens: int | None) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def view(self) -> tuple[SequenceView, ...]: ...

    def probe(self, request_ids: Sequence[str]) -> list[tuple[int, int]]: ...

    def keep(self, request_id: str, length: int | None = None) -> bool: ...

    @property
    def parked(self) -> frozenset[str]: ...

    def park(self, part: Parkable) -> None: ...

    def unpark(self, part: Parkable) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """``name`` tells the requests of a session from those of others; ``stop`` are token ids that
    end an answer. ``snapshots`` are those on the disk, if there is one; ``compressor`` is what
    compresses token ids."""

    name: str
    slots: int
    context: int
    stop: frozenset[int] = frozenset()
    snapshots: SnapshotDisk | None = None
    compressor: SessionCompressor | None = None

"""The requests of one session, and the order of their turns."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from kinfolk.daemon.aligned import BatchCandidate
from kinfolk.sched.request import Request
from kinfolk.sched.view import SequenceView


@dataclass(eq=False, slots=True)
class Served:
    """A request of the session. ``number`` is its id on the wire, ``slot`` that on the wire once it
    is known.

    ``running``: a turn is under way, whose line waits for its end. ``blocked``: it cannot begin
    before another request has a turn or ends. ``ending``: the engine was told to end it.
    ``cancels`` are the ids of the headers of the lines that did. The tokens of one with ``out`` go
    to that file; ``keep`` = (position, number) of a snapshot in its prompt.
    """

    number: int
    request: Request
    slot: int | None = None
    running: bool = True
    blocked: bool = False
    ending: bool = False
    cancels: list[int] = field(default_factory=list)
    out: str | None = None
    keep: tuple[int, int] | None = None
    tokens: list[int] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its id in the engine."""
        return self.request.id

    @property
    def remaining(self) -> int:
        return self.request.max_new - len(self.tokens)

    @property
    def quantum(self) -> int:
        return self.request.quantum or self.request.max_new

    @property
    def takes(self) -> int | None:
        """The number of the snapshot that is taken in its prompt."""
        return None if self.keep is None else self.keep[1]

    @property
    def busy(self) -> bool:
        """Whether something about it will be heard of without another command."""
        return self.ending or (self.running and not self.blocked)

    @property
    def held(self) -> bool:
        """Whether it waits for a turn."""
        return not self.running and not self.ending


class Rotation:
    """The requests by their ids, and ``cursor``: the slot at which the search for the next turn
    begins."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.cursor = 0
        self._served: dict[int, Served] = {}

    def __len__(self) -> int:
        return len(self._served)

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def get(self, number: int) -> Served | None:
        return self._served.get(number)

    def add(self, served: Served) -> None:
        self._served[served.number] = served

    def remove(self, served: Served) -> None:
        del self._served[served.number]
        for other in self:  # there is more room
            other.blocked = False

    @property
    def busy(self) -> bool:
        return any(served.busy for served in self._served.values())

    def taking(self, snapshots: Container[int]) -> bool:
        """Whether one of some snapshots is taken in a prompt that is under way."""
        return any(each.busy and each.takes in snapshots for each in self if each.keep)

    def in_slot(self, slot: int) -> Served | None:
        return next((served for served in self if served.slot == slot), None)

    def held(self) -> list[tuple[int, Served]]:
        """Slots and requests that wait for a turn, from the cursor on."""
        waiting = [
            (served.slot, served) for served in self if served.held and served.slot is not None
        ]
        return sorted(waiting, key=lambda pair: (pair[0] - self.cursor) % self.slots)

    def candidates(self, views: Sequence[SequenceView]) -> list[BatchCandidate]:
        """Those that wait for a turn, as the engine sees them."""
        seen = {view.request_id: view for view in views}
        return [
            BatchCandidate(
                slot,
                view.position,
                -1 if view.pending is None else view.pending,
                view.remaining,
            )
            for slot, served in self.held()
            if (view := seen.get(served.key)) is not None
        ]

    def next(self) -> Served | None:
        """Whose turn it is; the next search begins behind its slot."""
        for slot, served in self.held():
            self.cursor = (slot + 1) % self.slots
            return served
        return None

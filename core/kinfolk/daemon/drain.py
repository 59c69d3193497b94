"""A drain: turns for all requests of a session until each has ended."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.daemon.served import Rotation, Served


class Drain:
    """Gives turns in rotation, ``places`` at a time. It begins when the turns that were under way
    before it are over, so that lines have the effects of one after the other.

    ``lines`` are the ids of the headers of its lines; ``worked``: it has given a turn.
    """

    def __init__(self, rotation: Rotation) -> None:
        self.lines: list[int] = []
        self.places = 1
        self.worked = False
        self._rotation = rotation
        self._before = {served for served in rotation if served.busy}
        self._turns: set[Served] = set()

    def over(self, served: Served) -> None:
        """The turn of a request is over, or waits for another one."""
        self._before.discard(served)
        self._turns.discard(served)

    def turns(self) -> Iterator[Served]:
        """The requests whose turns may begin now; the caller begins each before the next."""
        while not self._before and len(self._turns) < self.places:
            served = self._rotation.next()
            if served is None:
                return
            self._turns.add(served)
            self.worked = True
            yield served

"""Reading a text that is still arriving, by code that looks as if it were all there.

A reader is a generator: it yields where it needs more text, and is resumed when there is some.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""What reads the source, waiting now and then, and returns a ``T``."""


class Source:
    """The front of a text: ``text`` is there and not yet taken, ``closed`` says it is the end.

    Every decision below waits until it no longer depends on where the text was cut into pieces.
    """

    def __init__(self) -> None:
        self.text = ""
        self.closed = False
        self.position = 0
        """How many characters were taken."""
        self._since_mark: list[str] = []

    def mark(self) -> None:
        """From here on, what is taken is kept for :meth:`marked`."""
        self._since_mark.clear()

    def marked(self) -> str:
        """What was taken since the mark."""
        return "".join(self._since_mark)

    def take(self, length: int) -> str:
        taken, self.text = self.text[:length], self.text[length:]
        self.position += len(taken)
        self._since_mark.append(taken)
        return taken

    def skip_space(self) -> Reading[None]:
        while True:
            self.take(len(self.text) - len(self.text.lstrip()))
            if self.text or self.closed:
                return
            yield

    def at(self, *markers: str) -> Reading[str | None]:
        """Which of the markers the text begins with. It is not taken."""
        while True:
            for marker in markers:
                if self.text.startswith(marker):
                    return marker
            if self.closed or not any(marker.startswith(self.text) for marker in markers):
                return None
            yield

    def find(self, ends: str, limit: int) -> Reading[int | None]:
        """Where the first of the characters ``ends`` is, if among the first ``limit``."""
        while True:
            found = [place for place in map(self.text[:limit].find, ends) if place >= 0]
            if found:
                return min(found)
            if self.closed or len(self.text) >= limit:
                return None
            yield


def overlap(text: str, marker: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``marker``."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0

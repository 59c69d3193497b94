"""Incremental parsing: parsers as generators that yield until more text arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Parse = Generator[None, None, T]
"""A parser that yields when it needs more text, and returns a ``T``."""


class TextBuffer:
    """Text that has arrived and was not consumed yet; ``closed`` = no more will arrive.

    The result of a method never depends on how the text was split into pieces: a method yields
    until it is certain.
    """

    def __init__(self) -> None:
        self.text = ""
        self.closed = False
        self.position = 0
        """The number of characters consumed."""
        self._since_mark: list[str] = []

    def mark(self) -> None:
        """Start to record consumed text for :meth:`marked`."""
        self._since_mark.clear()

    def marked(self) -> str:
        """The text consumed since :meth:`mark`."""
        return "".join(self._since_mark)

    def take(self, length: int) -> str:
        """Consume and return the first ``length`` characters."""
        taken, self.text = self.text[:length], self.text[length:]
        self.position += len(taken)
        self._since_mark.append(taken)
        return taken

    def skip_space(self) -> Parse[None]:
        while True:
            self.take(len(self.text) - len(self.text.lstrip()))
            if self.text or self.closed:
                return
            yield

    def at(self, *markers: str) -> Parse[str | None]:
        """The marker that the text begins with, or ``None``. Does not consume it."""
        while True:
            for marker in markers:
                if self.text.startswith(marker):
                    return marker
            if self.closed or not any(marker.startswith(self.text) for marker in markers):
                return None
            yield

    def find(self, ends: str, limit: int) -> Parse[int | None]:
        """Index of the first character that is in ``ends``, ``None`` if beyond ``limit``."""
        while True:
            offsets = [offset for offset in map(self.text[:limit].find, ends) if offset >= 0]
            if offsets:
                return min(offsets)
            if self.closed or len(self.text) >= limit:
                return None
            yield


def overlap(text: str, marker: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``marker``."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0

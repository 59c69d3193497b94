"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Iterable


class StopScanner:
    """Passes text up to the first stop string, however the text is split into pieces.

    The stop string that completes first ends the text; of several that complete at the same
    character, the longest. The stop string is not passed on. Text is held back only while it may be
    the start of a stop string: the longest suffix that is a proper prefix of one.
    """

    def __init__(self, stops: Iterable[str]):
        self._stops = tuple(stop for stop in dict.fromkeys(stops) if stop)
        self._prefixes = frozenset(
            stop[:length] for stop in self._stops for length in range(1, len(stop))
        )
        self._longest = max(map(len, self._prefixes), default=0)
        self._held = ""
        self.hit: str | None = None
        """The stop string that ended the text, ``None`` so far."""

    def feed(self, text: str) -> str:
        """Add text; returns the text that is now certain, always empty after a stop string."""
        if self.hit is not None:
            return ""
        text = self._held + text
        matches = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in matches if start >= 0]
        if ends:
            _, start, self.hit = min(ends)
            self._held = ""
            return text[:start]
        cut = len(text) - self._length_to_hold(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The text held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held

    def _length_to_hold(self, text: str) -> int:
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0

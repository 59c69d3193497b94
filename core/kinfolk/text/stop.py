"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Iterable


class StopScanner:
    """Lets text through up to the first stop string, wherever the pieces are cut.

    The stop string that is complete first ends the text; of several that end at the same character,
    the longest. The string itself is not let through. Held back is only what may still turn out to
    be the beginning of a stop string: the longest suffix that is a proper prefix of one.
    """

    def __init__(self, stops: Iterable[str]):
        self._stops = tuple(stop for stop in dict.fromkeys(stops) if stop)
        self._prefixes = frozenset(
            stop[:length] for stop in self._stops for length in range(1, len(stop))
        )
        self._longest = max(map(len, self._prefixes), default=0)
        self._held = ""
        self.hit: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        """The text that can be shown now. Empty once a stop string was found."""
        if self.hit is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if ends:
            _, start, self.hit = min(ends)
            self._held = ""
            return text[:start]
        cut = len(text) - self._length_to_hold(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held

    def _length_to_hold(self, text: str) -> int:
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0

"""How often requests started from a stored prefix, by the place where it was."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from kinfolk.sched.request import Place


class ReuseCounts:
    """Requests that started from a prefix, and the tokens that they reused, since the start."""

    def __init__(self) -> None:
        self._hits: Counter[Place] = Counter()
        self._tokens: Counter[Place] = Counter()

    def add(self, place: Place, tokens: int) -> None:
        """Count a request that started from a prefix of so many tokens."""
        self._hits[place] += 1
        self._tokens[place] += tokens

    def stats(self) -> dict[str, int]:
        """Any thread may ask."""
        places: tuple[Place, ...] = get_args(Place)
        hits = {f"prefix_hits_{place}": self._hits[place] for place in places}
        return hits | {f"prefix_tokens_{place}": self._tokens[place] for place in places}

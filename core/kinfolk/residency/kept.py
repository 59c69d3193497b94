"""What a stored prefix remembers of a paged sequence: which chunks it saw, and their scores.

It fits every budget: with more places than chunks were seen, the best of the others come too; with
fewer, the worst of them stay away. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinfolk.residency.selection import worths


@dataclass(frozen=True, slots=True)
class KeptResidency:
    """``resident`` chunks, and ``scores`` of the first ones; ``None``: nobody has scored any."""

    resident: frozenset[int] = frozenset()
    scores: tuple[float, ...] | None = None

    def best(self, chunks: Iterable[int], places: int) -> frozenset[int]:
        """The chunks for so many places: those that were seen before others, of each the best."""
        order = sorted(
            worths(chunks, self.scores), key=lambda worth: (worth[2] in self.resident, worth)
        )
        return frozenset(chunk for *_, chunk in order[max(0, len(order) - places) :])


NOTHING_KEPT = KeptResidency()

"""What a stored prefix remembers of a paged sequence: which chunks it saw, and their scores.

It fits every budget: with more places than chunks were seen, the best of the others come too; with
fewer, the worst of them stay away. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinfolk.residency.selection import worths


@dataclass(frozen=True, slots=True)
class KeptResidency:
    """``resident`` chunks, and ``scores`` of the first ones; ``None``: nobody has scored any."""

    resident: frozenset[int] = frozenset()
    scores: tuple[float, ...] | None = None

    def best(self, chunks: range, places: int) -> frozenset[int]:
        """The chunks for so many places: those that were seen before others, of each the best."""
        numbers = np.arange(chunks.start, chunks.stop)
        seen = np.isin(numbers, np.fromiter(self.resident, np.int64, len(self.resident)))
        order = np.lexsort((numbers, worths(numbers, self.scores), seen))
        return frozenset(numbers[order[max(0, len(order) - places) :]].tolist())


NOTHING_KEPT = KeptResidency()

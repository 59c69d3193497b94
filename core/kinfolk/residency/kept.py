"""What a stored prefix remembers of a paged sequence: which chunks it saw, and their scores.

It fits every budget: with more places than chunks were seen, the best of the others come too; with
fewer, the worst of them stay away. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kinfolk.residency.selection import worths

_CHUNK: Final = np.dtype([("resident", "u1"), ("score", "<f8")])

KEPT_CHUNK_BYTES: Final = _CHUNK.itemsize
"""Bytes of a chunk in :meth:`KeptResidency.packed`."""


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

    def packed(self, chunks: int) -> bytes:
        """What is remembered of the first ``chunks`` chunks, for a file: of each whether it was
        resident, 1 or 0, and its score as a float64, NaN = none. Scores are finite numbers."""
        found = np.zeros(chunks, _CHUNK)
        found["resident"][[chunk for chunk in self.resident if chunk < chunks]] = 1
        found["score"] = np.nan
        scores = (self.scores or ())[:chunks]
        found["score"][: len(scores)] = scores
        return found.tobytes()

    @classmethod
    def unpacked(cls, packed: bytes | bytearray) -> KeptResidency:
        """The inverse of :meth:`packed`."""
        found = np.frombuffer(packed, _CHUNK)
        scored = found["score"][~np.isnan(found["score"])]
        scores = tuple(scored.tolist()) if len(scored) else None
        return cls(frozenset(np.flatnonzero(found["resident"]).tolist()), scores)


NOTHING_KEPT = KeptResidency()

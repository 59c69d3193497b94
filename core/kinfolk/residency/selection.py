"""Which chunks stay on the device and which come back: pure functions of scores. Torch-free.

Without scores, the last chunks are worth most. A chunk that was filled after the scores were made
is worth more than all that have one: nobody has judged it yet. One that the core's scorer could
not score has the least of its scores, -1. Of two chunks that are worth the same, the later
one is worth more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FAVOUR = 0.9
"""A chunk takes the place of one that is there only if this part of its score is higher still."""

Scores = Sequence[float] | npt.NDArray[np.float64] | None
ChunkNumbers = npt.NDArray[np.int64]
Worths = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Chunks that leave, and chunks that come back."""

    leaving: tuple[int, ...] = ()
    coming: tuple[int, ...] = ()


NO_EXCHANGE = Exchange()


def worths(chunks: ChunkNumbers, scores: Scores) -> Worths:
    """What chunks, in increasing order, are worth: their scores, which are finite, and infinity
    where nobody judged."""
    table = np.asarray(() if scores is None else scores, np.float64)
    if len(chunks) and chunks[-1] < len(table):
        return table[chunks]
    found = np.full(len(chunks), np.inf)
    judged = chunks < len(table)
    found[judged] = table[chunks[judged]]
    return found


def least_worth(chunks: ChunkNumbers, scores: Scores, count: int) -> list[int]:
    """The ``count`` of ``chunks``, in increasing order, that go first, the first one first."""
    worth = worths(chunks, scores)
    if count == 1 and len(chunks):
        return [int(chunks[worth.argmin()])]  # the first of those that are worth the same
    return [chunk for _, chunk in _ends(chunks, worth, count)]


def select(
    resident: ChunkNumbers, away: ChunkNumbers, scores: Scores, room: int, burst: int
) -> Exchange:
    """The best exchange of at most ``burst`` chunks.

    ``resident`` are those that may leave, ``away`` those that may come, both in increasing order,
    ``room`` the places that are free. What comes takes free places first, then those of the least
    worth.
    """
    best = _ends(away, worths(away, scores), burst, most=True)
    free = max(0, room)
    coming, leaving = [chunk for _, chunk in best[:free]], []
    least = _ends(resident, worths(resident, scores), len(best) - len(coming))
    # In the order in which an exchange gains most.
    for (worth, new), (other, old) in zip(best[free:], least, strict=False):
        if _reduced(worth) <= other:
            break
        leaving.append(old)
        coming.append(new)
    return Exchange(tuple(leaving), tuple(coming))


def _ends(
    chunks: ChunkNumbers, worth: Worths, count: int, *, most: bool = False
) -> list[tuple[float, int]]:
    """The ``count`` chunks of the least or the ``most`` worth, then number: worths and numbers."""
    if count <= 0:
        return []
    if count < len(chunks):
        place = len(chunks) - count if most else count - 1
        ordered = worth.copy()
        ordered.partition(place)
        last = ordered[place]
        (kept,) = (worth >= last if most else worth <= last).nonzero()
        chunks, worth = chunks[kept], worth[kept]
    return sorted(zip(worth.tolist(), chunks.tolist(), strict=True), reverse=most)[:count]


def _reduced(worth: float) -> float:
    """What a chunk that is away is worth against those that are there."""
    return worth * FAVOUR if worth > 0 else worth / FAVOUR

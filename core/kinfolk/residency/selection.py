"""Which chunks stay on the device and which come back: pure functions of scores. Torch-free.

Without scores, the last chunks are worth most. A chunk that was sealed after the scores were made
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


def worths(chunks: ChunkNumbers, scores: Scores) -> Worths:
    """What chunks are worth: their scores, which are finite, and infinity where nobody judged."""
    found = np.full(len(chunks), np.inf)
    if scores is not None:
        table = np.asarray(scores, np.float64)
        judged = chunks < len(table)
        found[judged] = table[chunks[judged]]
    return found


def least_worth(chunks: ChunkNumbers, scores: Scores, count: int) -> list[int]:
    """The ``count`` chunks that go first, the first one first."""
    return _first(chunks, worths(chunks, scores), count)[0]


def select(
    resident: ChunkNumbers, away: ChunkNumbers, scores: Scores, room: int, burst: int
) -> Exchange:
    """The best exchange of at most ``burst`` chunks.

    ``resident`` are those that may leave, ``away`` those that may come, ``room`` the places that
    are free. What comes takes free places first, then those of the least worth.
    """
    # The most worth first: of the negative, the least.
    best, negative = _first(-away, -worths(away, scores), burst)
    free = max(0, room)
    coming, rest = [-chunk for chunk in best[:free]], best[free:]
    leaving = []
    last, least = _first(resident, worths(resident, scores), len(rest))
    # In the order in which an exchange gains most.
    for new, worth, old, other in zip(rest, negative[free:], last, least, strict=False):
        if _reduced(-worth) <= other:
            break
        leaving.append(old)
        coming.append(-new)
    return Exchange(tuple(leaving), tuple(coming))


def _first(chunks: ChunkNumbers, worth: Worths, count: int) -> tuple[list[int], list[float]]:
    """The first ``count`` chunks by worth, then by number, and their worths."""
    if 0 < count < len(chunks):
        kept = worth <= np.partition(worth, count - 1)[count - 1]
        chunks, worth = chunks[kept], worth[kept]
    order = np.lexsort((chunks, worth))[:count]
    return chunks[order].tolist(), worth[order].tolist()


def _reduced(worth: float) -> float:
    """What a chunk that is away is worth against those that are there."""
    return worth * FAVOUR if worth > 0 else worth / FAVOUR

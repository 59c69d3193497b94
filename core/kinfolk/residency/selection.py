"""Which chunks stay on the device and which come back: pure functions of scores. Torch-free.

Without scores, the last chunks are worth most. A chunk that was sealed after the scores were made
is worth more than all that have one: nobody has judged it yet. One that the core's scorer could
not score has the least of its scores, -1. Of two chunks that are worth the same, the later
one is worth more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FAVOUR = 0.9
"""A chunk takes the place of one that is there only if this part of its score is higher still."""

Scores = Sequence[float] | None
Worth = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Chunks that leave, and chunks that come back."""

    leaving: tuple[int, ...] = ()
    coming: tuple[int, ...] = ()


def worths(chunks: Iterable[int], scores: Scores) -> list[Worth]:
    """What chunks are worth: a key of each, to sort by, whose last part is the chunk."""
    if scores is None:
        return [(1.0, 0.0, chunk) for chunk in chunks]
    scored = len(scores)
    return [
        (0.0, scores[chunk], chunk) if chunk < scored else (1.0, 0.0, chunk) for chunk in chunks
    ]


def least_worth(chunks: Iterable[int], scores: Scores, count: int) -> list[int]:
    """The ``count`` chunks that go first, the first one first."""
    return [chunk for *_, chunk in heapq.nsmallest(count, worths(chunks, scores))]


def select(
    resident: Iterable[int], away: Iterable[int], scores: Scores, room: int, burst: int
) -> Exchange:
    """The best exchange of at most ``burst`` chunks.

    ``resident`` are those that may leave, ``away`` those that may come, ``room`` the places that
    are free. What comes takes free places first, then those of the least worth.
    """
    best = heapq.nlargest(burst, worths(away, scores))
    free = max(0, room)
    coming, rest = [chunk for *_, chunk in best[:free]], best[free:]
    leaving = []
    # In the order in which an exchange gains most.
    for new, old in zip(rest, heapq.nsmallest(len(rest), worths(resident, scores)), strict=False):
        if _reduced(new) <= old[:2]:
            break
        leaving.append(old[2])
        coming.append(new[2])
    return Exchange(tuple(leaving), tuple(coming))


def _reduced(value: Worth) -> tuple[float, float]:
    """What a chunk that is away is worth against those that are there."""
    scored, score, _ = value
    return scored, score * FAVOUR if score > 0 else score / FAVOUR

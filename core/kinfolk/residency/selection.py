"""Which chunks stay on the device and which come back: pure functions of scores. Torch-free.

Without scores, the last chunks are worth most. A chunk that was sealed after the scores were made
is worth more than all that have one: nobody has judged it yet. Of two chunks that are worth the
same, the later one is worth more.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
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


def worth(chunk: int, scores: Scores) -> Worth:
    """What a chunk is worth: a key to sort by."""
    if scores is None or chunk >= len(scores):
        return (1.0, 0.0, chunk)
    return (0.0, scores[chunk], chunk)


def least_worth(chunks: Iterable[int], scores: Scores, count: int) -> list[int]:
    """The ``count`` chunks that go first, the first one first."""
    return heapq.nsmallest(count, chunks, key=lambda chunk: worth(chunk, scores))


def select(
    resident: Collection[int], away: Collection[int], scores: Scores, room: int, burst: int
) -> Exchange:
    """The best exchange of at most ``burst`` chunks.

    ``resident`` are those that may leave, ``away`` those that may come, ``room`` the places that
    are free. What comes takes free places first, then those of the least worth.
    """
    coming = heapq.nlargest(burst, away, key=lambda chunk: worth(chunk, scores))
    filling, rest = coming[: max(0, room)], coming[max(0, room) :]
    leaving = []
    for chunk, other in zip(
        rest, least_worth(resident, scores, len(rest)), strict=False
    ):  # in the order in which an exchange gains most
        if _reduced(worth(chunk, scores)) <= worth(other, scores)[:2]:
            break
        leaving.append(other)
    return Exchange(tuple(leaving), tuple(filling + rest[: len(leaving)]))


def _reduced(value: Worth) -> tuple[float, float]:
    """What a chunk that is away is worth against those that are there."""
    scored, score, _ = value
    return scored, score * FAVOUR if score > 0 else score / FAVOUR

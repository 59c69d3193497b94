"""Passages of tokens: which are kept, by the scores of their tokens.

A passage is 32 tokens in a row. (The state of sequences has chunks, of 64 positions; those are
something else.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]

PASSAGE_TOKENS: Final = 32
HEAD_PASSAGES: Final = 8
TAIL_PASSAGES: Final = 24
SMOOTHED_TOKENS: Final = 13
"""A token's score is the mean of those of so many tokens around it."""

QUERY_TOKENS: Final = 96
"""Last tokens of a prompt, which say what it asks for."""

ANCHOR_TOKENS: Final = 4
"""So many tokens of the query in a row, found again, mark a place that it may be about."""

FEWEST_TOKENS: Final = 9
"""A shorter text is kept whole: its last rows, which score, would be all of it."""

_ANCHORS: Final = ((1024, 2, 8), (2048, 4, 16))
"""Passages of a text below which a radius and a number of matches hold."""
_LONG_ANCHORS: Final = (8, 32)


def smoothed(scores: Numbers, width: int = SMOOTHED_TOKENS) -> Numbers:
    """The mean of the ``width`` scores around each; at the ends of those that there are."""
    if not len(scores):
        return scores
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    index = np.arange(len(scores))
    low = np.maximum(index - width // 2, 0)
    high = np.minimum(index + width // 2 + 1, len(scores))
    means: Numbers = ((sums[high] - sums[low]) / (high - low)).astype(np.float32)
    return means


def standardized(scores: Numbers) -> Numbers:
    """Scores with mean 0 and deviation 1, which can be compared with those of another text."""
    wide = scores.astype(np.float64)
    ranks: Numbers = ((wide - wide.mean()) / (wide.std() + 1e-6)).astype(np.float32)
    return ranks


def passage_scores(scores: Numbers) -> Numbers:
    """The mean score of each passage; the last one may be short."""
    count = -(-len(scores) // PASSAGE_TOKENS)
    starts = np.arange(count) * PASSAGE_TOKENS
    sizes = np.minimum(PASSAGE_TOKENS, len(scores) - starts)
    return (np.add.reduceat(scores.astype(np.float64), starts) / sizes).astype(np.float32)


def kept_count(passages: int, ratio: float) -> int:
    """How many of the passages are kept, one at least."""
    # 0.29 * 100 is less than 29 in binary.
    return max(1, int(passages * ratio + 1e-9))


def ends(kept: int) -> tuple[int, int]:
    """Passages at the beginning and at the end that are kept in any case, of ``kept`` in all."""
    if kept > HEAD_PASSAGES + TAIL_PASSAGES:
        return HEAD_PASSAGES, TAIL_PASSAGES
    room = max(1, kept - 1)
    head = HEAD_PASSAGES * room // (HEAD_PASSAGES + TAIL_PASSAGES)
    return head, room - head


def anchors(tokens: Tokens, query: Tokens, passages: int) -> Iterator[int]:
    """Of so many ``passages``, which begin with ``tokens``, those around the places where tokens of
    the query stand. What is found more often than usual says nothing."""
    radius, most = next((rest for below, *rest in _ANCHORS if passages < below), _LONG_ANCHORS)
    grams = {
        tuple(query[start : start + ANCHOR_TOKENS].tolist())
        for start in range(len(query) - ANCHOR_TOKENS + 1)
    }
    last = len(tokens) - ANCHOR_TOKENS + 1
    if last < 1:
        return
    for gram in grams:
        places = np.flatnonzero(tokens[:last] == gram[0])
        for offset, token in enumerate(gram[1:], start=1):
            places = places[tokens[places + offset] == token]
        if 1 <= len(places) <= most:
            for place in places.tolist():
                middle = place // PASSAGE_TOKENS
                yield from range(max(0, middle - radius), min(passages, middle + radius + 1))


def select_passages(
    tokens: Tokens, scores: Numbers, ratio: float, query: Tokens | None = None
) -> list[int]:
    """The passages of ``tokens`` that are kept, in order: both ends, those around anchors of the
    ``query``, and the best scored until the ``ratio`` is reached. Without a ``query`` the last
    tokens are it, and are looked for in what is before them.

    Anchors are kept even if they are more than the ratio. ``scores`` are those of single tokens,
    not smoothed, one for each; raises :class:`ValueError` if there are others.
    """
    if len(tokens) != len(scores):
        raise ValueError(f"{len(tokens)} tokens have {len(scores)} scores")
    count = -(-len(tokens) // PASSAGE_TOKENS)
    if len(tokens) < FEWEST_TOKENS:
        return list(range(count))
    wanted = kept_count(count, ratio)
    head, tail = ends(wanted)
    kept = set(range(min(head, count))) | set(range(max(0, count - tail), count))
    body = tokens
    if query is None:
        body, query = tokens[:-QUERY_TOKENS], tokens[-QUERY_TOKENS:]
    kept.update(anchors(body, query, count))
    best = np.argsort(-passage_scores(smoothed(scores)), kind="stable")
    for passage in best.tolist():
        if len(kept) >= wanted:
            break
        kept.add(passage)
    return sorted(kept)

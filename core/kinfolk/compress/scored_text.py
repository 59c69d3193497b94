"""A text whose tokens get scores, and what is left of its messages then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.compress.passages import (
    PASSAGE_TOKENS,
    QUERY_TOKENS,
    Numbers,
    Tokens,
    select_passages,
    standardized,
)
from kinfolk.compress.spans import Span, joined_spans, repaired, runs

Piece = tuple[tuple[int, ...], int]
"""Tokens that are read at once, and how many of the first ones get their scores from that."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text that is scored as one. ``tokens`` are ids of the scorer, ``places`` where each begins
    in ``text`` and, last, its end. Of each message (its number, and where it stands) tokens may be
    left out, but for those in ``kept``. Anchors are looked for with the ``query``, ``None`` = the
    last tokens. ``ratio`` is the part that is kept."""

    text: str
    tokens: Tokens
    places: npt.NDArray[np.int64]
    messages: tuple[tuple[int, Span], ...]
    kept: tuple[Span, ...] = ()
    query: Tokens | None = None
    ratio: float = 1.0

    @property
    def optional(self) -> npt.NDArray[np.int64]:
        """The numbers of the tokens that may be left out."""
        inside = [tokens_inside(self.places, span) for _, span in self.messages]
        kept = [tokens_inside(self.places, span) for span in self.kept]
        none = np.array([], np.int64)
        return np.setdiff1d(np.concatenate([none, *inside]), np.concatenate([none, *kept]))

    def cut(self, scores: Numbers) -> dict[int, str]:
        """The texts of its messages, by number, without what is left out."""
        optional = self.optional
        chosen = select_passages(self.tokens[optional], scores[optional], self.ratio, self.query)
        kept = [
            token
            for passage in chosen
            for token in optional[passage * PASSAGE_TOKENS :][:PASSAGE_TOKENS].tolist()
        ]
        spans = [Span(int(self.places[run.start]), int(self.places[run.end])) for run in runs(kept)]
        texts = {}
        for number, within in self.messages:
            # No message is left without a word: templates may refuse it.
            first = Span(within.start, min(within.start + 1, within.end))
            whole = repaired(self.text, [*spans, *self.kept], within)
            texts[number] = joined_spans(self.text, whole or repaired(self.text, [first], within))
        return texts


def pieces(ids: Tokens, most: int) -> list[Piece]:
    """What is read of a text, at most ``most`` tokens at once. A longer text is cut, and its end,
    the question, is read behind each piece."""
    tokens = ids.tolist()
    if len(tokens) <= most:
        return [(tuple(tokens), len(tokens))]
    end = -min(QUERY_TOKENS, most // 4)
    query, body, room = tokens[end:], tokens[:end], most + end
    cut = [body[start : start + room] for start in range(0, len(body), room)]
    read = [((*piece, *query), len(piece)) for piece in cut]
    read[-1] = (read[-1][0], read[-1][1] + len(query))
    return read


def tokens_inside(places: npt.NDArray[np.int64], span: Span) -> npt.NDArray[np.int64]:
    """The numbers of the tokens that stand in a span as a whole."""
    begins, stops = places[:-1], places[1:]
    inside = (begins >= span.start) & (stops <= span.end) & (stops > begins)
    return np.flatnonzero(inside)


def messages_in(
    text: str, turns: Sequence[Mapping[str, Any]], chosen: Sequence[int]
) -> list[tuple[int, Span]]:
    """The chosen messages, and where their contents stand in a rendered conversation; none if the
    template has changed one of them."""
    found, start = [], 0
    for number, turn in enumerate(turns):
        content = str(turn.get("content") or "").strip()
        place = text.find(content, start)
        if place < 0:
            return []
        start = place + len(content)
        if number in chosen:
            found.append((number, Span(place, start)))
    return found


def joined_scores(pieces: Sequence[Piece], scores: Iterator[Numbers]) -> Numbers:
    """The scores of a text from those of its pieces. Shares of attention in several pieces are not
    comparable, ranks in them are."""
    if len(pieces) == 1:
        return next(scores)
    return np.concatenate([standardized(next(scores)[:count]) for _, count in pieces])

"""Spans of a text: where tokens stand in it, and cuts that fall between words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

LONGEST_REPAIR: Final = 64
"""Characters that a cut is moved by at most: some languages and data have no spaces."""

LONGEST_QUESTION: Final = 1000
"""Tokens of a question that is kept whole."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters ``start`` up to, and without, ``end``; or tokens, where it says so."""

    start: int
    end: int


def token_places(text: str, lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where each token begins in ``text``, in characters, and behind them the end of the text.

    ``lengths`` are the bytes of the tokens; a token that begins inside a character begins before
    it. Raises :class:`ValueError` if the tokens do not spell the text.
    """
    raw = text.encode("utf-8")
    begins = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64), dtype=np.int64)])
    if begins[-1] != len(raw):
        raise ValueError(f"the tokens spell {begins[-1]} bytes of a text of {len(raw)}")
    # Bytes 10xxxxxx continue a character.
    is_first = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80
    before = np.concatenate([[0], np.cumsum(is_first)])
    inside = np.concatenate([~is_first, [False]])
    places: npt.NDArray[np.int64] = (before[begins] - inside[begins]).astype(np.int64)
    return places


def runs(numbers: Iterable[int]) -> list[Span]:
    """Increasing numbers as spans of those that follow one another."""
    found: list[Span] = []
    for number in numbers:
        if found and found[-1].end == number:
            found[-1] = Span(found[-1].start, number + 1)
        else:
            found.append(Span(number, number + 1))
    return found


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same characters in spans that neither touch nor overlap, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if span.start >= span.end:
            continue
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def repaired(text: str, spans: Iterable[Span], within: Span) -> list[Span]:
    """Spans that begin and end between words: each is made longer until it does, and a space
    behind it is part of it. No cut is moved out of ``within`` or by more than
    ``LONGEST_REPAIR`` characters; one that would be stays where it is."""
    return merged(
        Span(_begin(text, span.start, within.start), _end(text, span.end, within.end))
        for span in (
            Span(max(each.start, within.start), min(each.end, within.end)) for each in spans
        )
        if span.start < span.end
    )


def _begin(text: str, start: int, lowest: int) -> int:
    if text[start].isspace():
        return start
    for place in range(start, max(lowest, start - LONGEST_REPAIR) - 1, -1):
        if place == lowest or text[place - 1].isspace():
            return place
    return start


def _end(text: str, end: int, highest: int) -> int:
    if text[end - 1].isspace():
        return end
    for place in range(end, min(highest, end + LONGEST_REPAIR) + 1):
        if place == highest:
            return place
        if text[place].isspace():
            return place + 1
    return end


def joined_spans(text: str, spans: Sequence[Span]) -> str:
    """The characters of the spans, in order; of two spaces at a joint one is left out."""
    pieces: list[str] = []
    for span in spans:
        piece = text[span.start : span.end]
        if pieces and pieces[-1][-1:].isspace() and piece[:1] == " " and piece[1:2].strip():
            piece = piece[1:]
        pieces.append(piece)
    return "".join(pieces)


def question(text: str, within: Span) -> Span:
    """The last paragraph of a message, which usually asks something."""
    stripped = text[within.start : within.end].rstrip()
    blank = max(stripped.rfind("\n\n"), stripped.rfind("\n\r\n"))
    return Span(within.start + blank + 1 if blank >= 0 else within.start, within.end)

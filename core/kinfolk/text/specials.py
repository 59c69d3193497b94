"""Tokens that are found in text as a whole, before anything is cut or merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class SpecialMatcher:
    """Splits text at the literal texts of special tokens.

    The longest text is looked for first, over the whole input, then the next; a place that is
    taken stays taken. This is llama.cpp's order: where two texts overlap the longer one wins, not
    the one that begins first.
    """

    def __init__(self, specials: Mapping[str, int]):
        self._ids = {text: token for text, token in specials.items() if text}
        # Candidates are found by their first two characters, so that thousands of specials cost
        # no more than a few.
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: tuple(sorted(found)) for start, found in lengths.items()}
        self._first = frozenset(text[0] for text in self._ids)

    def split(self, text: str) -> list[str | int]:
        """Plain pieces and ids of special tokens, in order; no piece is empty."""
        found = sorted(self._occurrences(text), key=_longest_first)
        if not found:
            return [text] if text else []
        taken = bytearray(len(text))
        kept = []
        for start, special in found:
            end = start + len(special)
            if taken.find(1, start, end) < 0:
                taken[start:end] = b"\1" * len(special)
                kept.append((start, special))
        parts: list[str | int] = []
        position = 0
        for start, special in sorted(kept):
            if start > position:
                parts.append(text[position:start])
            parts.append(self._ids[special])
            position = start + len(special)
        if position < len(text):
            parts.append(text[position:])
        return parts

    def _occurrences(self, text: str) -> Iterator[tuple[int, str]]:
        for first in self._first:
            start = text.find(first)
            while start >= 0:
                # A special of one character has a key of one character.
                for key in {text[start : start + 2], first}:
                    for length in self._lengths.get(key, ()):
                        candidate = text[start : start + length]
                        if candidate in self._ids:
                            yield start, candidate
                start = text.find(first, start + 1)


def _longest_first(occurrence: tuple[int, str]) -> tuple[int, str, int]:
    start, special = occurrence
    return -len(special.encode("utf-8")), special, start

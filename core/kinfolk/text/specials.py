"""Matching of special tokens in text, before pre-tokenization and merging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class SpecialMatcher:
    """Splits text at the literal texts of special tokens (text -> id).

    Texts are matched from the longest to the shortest, each over the whole input, as in llama.cpp:
    of two overlapping matches the longer one wins, not the one that begins first.
    """

    def __init__(self, specials: Mapping[str, int]):
        self._ids = {text: token for text, token in specials.items() if text}
        # Indexed by the first two characters, so that thousands cost no more than a few.
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: tuple(sorted(sizes)) for start, sizes in lengths.items()}
        self._first = frozenset(text[0] for text in self._ids)

    def split(self, text: str) -> list[str | int]:
        """Plain pieces and ids of special tokens, in order; no piece is empty."""
        occurrences = sorted(self._occurrences(text), key=_longest_first)
        if not occurrences:
            return [text] if text else []
        taken = bytearray(len(text))
        kept = []
        for start, special in occurrences:
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
                # A special of one character is indexed by that character.
                for key in {text[start : start + 2], first}:
                    for length in self._lengths.get(key, ()):
                        candidate = text[start : start + length]
                        if candidate in self._ids:
                            yield start, candidate
                start = text.find(first, start + 1)


def _longest_first(occurrence: tuple[int, str]) -> tuple[int, str, int]:
    start, special = occurrence
    return -len(special.encode("utf-8")), special, start

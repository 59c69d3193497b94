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
        # By bytes, then by the first two characters, so that thousands cost no more than a few.
        sizes: dict[int, dict[str, set[str]]] = {}
        for text in self._ids:
            starts = sizes.setdefault(len(text.encode("utf-8")), {})
            starts.setdefault(text[:2], set()).add(text)
        self._sizes = [
            {key: (texts, {len(text) for text in texts}) for key, texts in sizes[size].items()}
            for size in sorted(sizes, reverse=True)
        ]
        self._keys = frozenset(text[:2] for text in self._ids)
        self._first = frozenset(text[0] for text in self._ids)

    def split(self, text: str) -> list[str | int]:
        """Plain pieces and ids of special tokens, in order; no piece is empty."""
        parts: list[str | int] = []
        position = 0
        for start, special in sorted(self._kept(text)):
            if start > position:
                parts.append(text[position:start])
            parts.append(self._ids[special])
            position = start + len(special)
        if position < len(text):
            parts.append(text[position:])
        return parts

    def _kept(self, text: str) -> Iterator[tuple[int, str]]:
        """The matches of which none overlaps another. Matches of one size are looked for at a time:
        a text of blanks has dozens at each position."""
        starts = self._starts(text)
        if not starts:
            return
        taken = bytearray(len(text))
        for specials in self._sizes:
            found: dict[str, list[int]] = {}
            for key in specials.keys() & starts.keys():
                texts, lengths = specials[key]
                for start in starts[key]:
                    for length in () if taken[start] else lengths:
                        special = text[start : start + length]
                        if special in texts:
                            found.setdefault(special, []).append(start)
            for special in sorted(found):
                for start in found[special]:
                    end = start + len(special)
                    if taken.find(1, start, end) < 0:
                        taken[start:end] = b"\1" * len(special)
                        yield start, special

    def _starts(self, text: str) -> dict[str, list[int]]:
        """Where the first two characters of specials, or their only one, are in a text."""
        starts: dict[str, list[int]] = {}
        for first in self._first:
            start = text.find(first)
            while start >= 0:
                for key in {text[start : start + 2], first} & self._keys:
                    starts.setdefault(key, []).append(start)
                start = text.find(first, start + 1)
        return starts

"""Prompt lookup: drafts copy what followed an earlier occurrence of the text's last tokens.

Saxena, "Prompt Lookup Decoding" (2023). The draft continues the earlier occurrence of the longest
suffix of the text, and is as long as that suffix: a long match is seldom a coincidence, and while
text is copied, matches grow with every step. Costs no model and pays where output repeats input:
editing code, quoting, lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.model_api import ModelInfo

MIN_N = 2
MAX_N = 16
"""Longest suffix that is compared, unless longer drafts are asked for."""
MAX_CANDIDATES = 32
"""Occurrences of the last ``MIN_N`` tokens that are compared, the latest first."""
GROWTH = 16384
"""Most tokens indexed in one call, a few ms: a long prompt is indexed over several steps."""

_NONE = -1


class SuffixIndex:
    """Index of the positions of each pair of tokens in one growing text.

    ``_latest`` maps a pair to the position behind its last occurrence, ``_earlier`` chains from
    there to the occurrences before: adding a token and finding a candidate are constant work.
    """

    def __init__(self, text: list[int]) -> None:
        self.text = text
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = [_NONE] * MIN_N

    def grow(self) -> None:
        """Index appended tokens, except the last pair: that is the one to look up."""
        first = len(self._earlier)
        for stop in range(first, min(len(self.text), first + GROWTH)):
            pair = tuple(self.text[stop - MIN_N : stop])
            self._earlier.append(self._latest.get(pair, _NONE))
            self._latest[pair] = stop

    def longest(self, most: int) -> tuple[int, int]:
        """Position behind the best earlier occurrence of a suffix of the text of up to ``most``
        tokens, latest among equals, and the length of the suffix, 0 = there is none."""
        text, end = self.text, len(self.text)
        found = self._latest.get(tuple(text[end - MIN_N :]), _NONE)
        best, best_size = _NONE, 0
        for _ in range(MAX_CANDIDATES):
            if found == _NONE or best_size >= most:
                break
            size = MIN_N
            while size < min(most, found) and text[found - size - 1] == text[end - size - 1]:
                size += 1
            if size > best_size:
                best, best_size = found, size
            found = self._earlier[found]
        return best, best_size


class PromptLookup:
    """The drafter ``ngram``, which needs no model.

    Texts are told apart by the identity of their list, which a sequence keeps for life and only
    appends to; the index holds on to the list, so an identity cannot come to mean another one.
    """

    def __init__(self) -> None:
        self._indexes: dict[int, SuffixIndex] = {}

    def propose(self, known: list[int], limit: int) -> list[int]:
        """At most ``limit`` tokens, and as many as match; none if the last two tokens have no
        earlier occurrence."""
        if limit <= 0 or len(known) <= MIN_N:
            return []
        index = self._indexes.get(id(known))
        if index is None:
            index = self._indexes[id(known)] = SuffixIndex(known)
        index.grow()
        start, size = index.longest(max(MAX_N, limit))
        draft: list[int] = []
        # A match that overlaps the end of the text is a loop: the draft continues itself.
        for position in range(start, start + min(limit, size)):
            inside = position - len(known)
            draft.append(known[position] if inside < 0 else draft[inside])
        return draft

    def release(self, known: list[int]) -> None:
        self._indexes.pop(id(known), None)


def create(info: ModelInfo) -> PromptLookup:
    """The drafter of ``--draft ngram``; it works for every model."""
    return PromptLookup()

"""Regular expression of most byte-level pre-tokenizers, with its variable parts."""

from __future__ import annotations

from typing import Final

CONTRACTIONS: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
"""English contractions, with both cases spelled out: a case-insensitive flag would also match
letters that fold to ``s`` or ``k``, unlike llama.cpp."""


def words(*, marks: bool = False, digits: str = r"\p{N}") -> str:
    """The pattern: contractions, words, digits, punctuation with line ends, white space.

    ``marks``: words include combining marks. ``digits`` is the pattern of a piece of digits. The
    result equals the string in published tokenizers, because conversion compares the two.
    """
    word, letters = (r"[\p{L}\p{M}]", r"\p{L}\p{M}") if marks else (r"\p{L}", r"\p{L}")
    return (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{word}+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

"""The pattern by which most byte-level vocabularies cut text, with the parts they vary."""

from __future__ import annotations

from typing import Final

CONTRACTIONS: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
"""English ones. Spelled out: a case-insensitive flag would also match letters that fold to ``s`` or
``k``, which the patterns' authors and llama.cpp do not mean."""


def words(*, marks: bool = False, digits: str = r"\p{N}") -> str:
    """Contractions, words, digits, punctuation with its line ends, white space.

    ``marks``: combining marks are parts of words. ``digits`` matches the digits of one piece.
    Spelled as in published tokenizers, which are compared with it.
    """
    word, letters = (r"[\p{L}\p{M}]", r"\p{L}\p{M}") if marks else (r"\p{L}", r"\p{L}")
    return (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{word}+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

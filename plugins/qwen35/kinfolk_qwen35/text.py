"""How the family's text is cut, and how its turns are written.

Both patterns are those of the published tokenizers; ``qwen35`` differs from ``qwen2`` in counting
combining marks as parts of words. Neither normalises text.
"""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ChatFormat, PreTokenizer

_CONTRACTIONS: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _pattern(letters: str) -> str:
    """Contractions, words, single digits, punctuation with its line ends, white space."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|\p{{N}}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


PRETOKENIZERS: Final = (
    PreTokenizer("qwen35", (_pattern(r"\p{L}\p{M}"),)),
    PreTokenizer("qwen2", (_pattern(r"\p{L}"),)),
)

CHAT: Final = ChatFormat(
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    think=("<think>", "</think>"),
    tool_call=("<tool_call>", "</tool_call>"),
    role_aliases={"developer": "system"},
)

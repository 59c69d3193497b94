"""SentencePiece BPE: merges follow from token scores.

No pre-tokenizer; a text gets a space prefix unless the file disables it. Source: the BPE of
SentencePiece (Kudo and Richardson, 2018) as llama.cpp implements it, without removing spaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.text.bpe import encode_bpe
from kinfolk.text.character_level import SPACE, CharacterLevel

if TYPE_CHECKING:
    import tokenizers


class SentencePiece(CharacterLevel):
    """:class:`kinfolk.text.symbols.Symbols` of files that list scores."""

    space_prefix = True

    def encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        return encode_bpe(tokenizer, text.replace(" ", SPACE))

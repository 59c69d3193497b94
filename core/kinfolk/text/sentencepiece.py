"""SentencePiece vocabularies: characters are merged by the scores of the tokens that they make.

Such a vocabulary says itself how text is read, and no family is asked: nothing is cut before
merging, and a space stands in front of a text unless the file denies it. Source: the BPE of
SentencePiece (Kudo and Richardson, 2018) as llama.cpp runs it, so without removing spaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfolk.text.character_level import SPACE, CharacterLevel

if TYPE_CHECKING:
    import tokenizers


class SentencePiece(CharacterLevel):
    """The kind of :class:`kinfolk.text.symbols.Symbols` of files that list scores."""

    space_prefix = True

    def encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text.replace(" ", SPACE), add_special_tokens=False).ids
        return ids

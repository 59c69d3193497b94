"""Character-level vocabularies: characters are merged, and those without a token become bytes.

Spaces are written as U+2581, so that merges can be listed with a space between their halves; a byte
is written ``<0x0A>``. Source: SentencePiece (Kudo and Richardson, 2018) with byte fallback, as
llama.cpp runs it on files that list merges. Nothing is put in front of a text. What has no token
and no bytes either is the unknown token, if the file names one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kinfolk.text.byte_level import NEVER_IN_UTF8
from kinfolk.text.pretokenizers import split_steps

if TYPE_CHECKING:
    import tokenizers

    from kinfolk.text.formats import PreTokenizer
    from kinfolk.text.vocabulary import Vocabulary

SPACE: Final = "\u2581"
_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
_LINE_ENDS: Final = re.compile("(\n\n+)")


def byte_token(byte: int) -> str:
    """The text of the token of a byte."""
    return f"<0x{byte:02X}>"


class CharacterLevel:
    """The kind of :class:`kinfolk.text.symbols.Symbols` whose symbols are characters."""

    space_prefix = False
    scored = True

    def literal(self, text: str) -> str:
        return text.replace(SPACE, " ")

    def token_bytes(self, text: str) -> bytes:
        if byte := _BYTE.fullmatch(text):
            return bytes.fromhex(byte[1])
        return text.replace(SPACE, " ").encode("utf-8")

    def build(
        self,
        vocabulary: Vocabulary,
        merges: list[tuple[str, str]],
        pre: PreTokenizer,
    ) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, models, pre_tokenizers

        result = Tokenizer(
            models.BPE(
                vocab=vocabulary.ids,
                merges=merges,
                unk_token=vocabulary.unknown_name,
                fuse_unk=True,
                byte_fallback=True,
                ignore_merges=pre.ignore_merges,
            )
        )
        result.pre_tokenizer = pre_tokenizers.Sequence([*split_steps(pre)])
        return result

    def encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        """Line ends in a row are taken whole if they are a token, for merges do not lead to all.

        No other piece is: a line that reads like the token of a byte or like a special one would
        turn into it.
        """
        ids: list[int] = []
        for place, part in enumerate(_LINE_ENDS.split(text.replace(" ", SPACE))):
            whole = tokenizer.token_to_id(part) if place % 2 else None
            if whole is not None:
                ids.append(whole)
            elif part:
                ids.extend(tokenizer.encode(part, add_special_tokens=False).ids)
        return ids

    def unspelled(self, ids: Mapping[str, int]) -> Sequence[str]:
        return tuple(
            byte_token(byte)
            for byte in range(256)
            if byte_token(byte) not in ids and byte not in NEVER_IN_UTF8
        )

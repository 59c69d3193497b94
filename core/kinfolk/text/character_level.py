"""Character-level BPE with byte fallback, for files that list merges.

A space is spelled U+2581; a byte is spelled ``<0x0A>``. A character without a token is encoded as
its bytes, and without byte tokens as the unknown token, if the file names one. No space prefix.
Source: SentencePiece (Kudo and Richardson, 2018), as llama.cpp implements it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kinfolk.text.bpe import encode_bpe
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
    """The text of a byte's token: ``<0x0A>``."""
    return f"<0x{byte:02X}>"


class CharacterLevel:
    """:class:`kinfolk.text.symbols.Symbols` of character-level vocabularies."""

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
        """Ids of a plain text. A run of line ends that is a token is matched whole, because not all
        such tokens can be built by merges. Other parts are not matched whole: text that looks like
        a byte token or a special token must stay text.
        """
        ids: list[int] = []
        for index, part in enumerate(_LINE_ENDS.split(text.replace(" ", SPACE))):
            whole = tokenizer.token_to_id(part) if index % 2 else None
            if whole is not None:
                ids.append(whole)
            elif part:
                ids.extend(encode_bpe(tokenizer, part))
        return ids

    def missing(self, ids: Mapping[str, int]) -> Sequence[str]:
        return tuple(
            byte_token(byte)
            for byte in range(256)
            if byte_token(byte) not in ids and byte not in NEVER_IN_UTF8
        )

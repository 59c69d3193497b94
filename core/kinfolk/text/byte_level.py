"""Byte-level BPE: a token's text spells each byte as one printable letter.

A printable character of Latin-1 spells its own byte; the other 68 bytes are spelled as the
characters from U+0100 on, in order. Source: the byte encoder of GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kinfolk.text.bpe import encode_bpe
from kinfolk.text.pretokenizers import split_steps

if TYPE_CHECKING:
    import tokenizers

    from kinfolk.text.formats import PreTokenizer
    from kinfolk.text.vocabulary import Vocabulary

_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
NEVER_IN_UTF8: Final = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))

LETTER_OF_BYTE: Final[Mapping[int, str]] = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + index) for index, byte in enumerate(_OTHERS)
}
_BYTE_OF_LETTER: Final[Mapping[int, int]] = {
    ord(letter): byte for byte, letter in LETTER_OF_BYTE.items()
}


class ByteLevel:
    """:class:`kinfolk.text.symbols.Symbols` of byte-level vocabularies: symbols are bytes."""

    space_prefix = False
    scored = False

    def literal(self, text: str) -> str:
        return text

    def token_bytes(self, text: str) -> bytes:
        """The bytes that the letters spell; UTF-8 of the text if a character is no such letter."""
        try:
            return bytes([_BYTE_OF_LETTER[ord(letter)] for letter in text])
        except KeyError:
            return text.encode("utf-8")

    def build(
        self,
        vocabulary: Vocabulary,
        merges: list[tuple[str, str]],
        pre: PreTokenizer,
    ) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, models, pre_tokenizers

        model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=pre.ignore_merges)
        result = Tokenizer(model)
        result.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *split_steps(pre),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return result

    def encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        return encode_bpe(tokenizer, text)

    def missing(self, ids: Mapping[str, int]) -> Sequence[str]:
        return tuple(
            f"0x{byte:02X}"
            for byte, letter in LETTER_OF_BYTE.items()
            if letter not in ids and byte not in NEVER_IN_UTF8
        )

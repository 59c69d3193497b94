"""What byte-pair merging starts from, and so how a token's text stands for bytes.

A kind is a class with the methods of :class:`Symbols` and a line in :data:`SYMBOLS`; a family asks
for it by name in :attr:`kinfolk.text.formats.PreTokenizer.symbols`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from kinfolk.errors import UnsupportedModelError
from kinfolk.text.byte_level import ByteLevel
from kinfolk.text.character_level import CharacterLevel
from kinfolk.text.sentencepiece import SentencePiece

if TYPE_CHECKING:
    import tokenizers

    from kinfolk.text.formats import PreTokenizer
    from kinfolk.text.vocabulary import Vocabulary


class Symbols(Protocol):
    """One way to spell bytes as the symbols that are merged."""

    space_prefix: bool
    """Whether a text is read with a space in front of it unless the file denies it."""

    scored: bool
    """Whether merges follow from the scores of tokens where a file lists none."""

    def literal(self, text: str) -> str:
        """What a user-defined token of this text prints, and where it is found."""
        ...

    def token_bytes(self, text: str) -> bytes:
        """What an ordinary token of this text prints."""
        ...

    def build(
        self,
        vocabulary: Vocabulary,
        merges: list[tuple[str, str]],
        pre: PreTokenizer,
    ) -> tokenizers.Tokenizer:
        """A tokenizer of plain text: special tokens are none of its business."""
        ...

    def encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        """Ids of a plain text, with a tokenizer from ``build``."""
        ...

    def unspelled(self, ids: Mapping[str, int]) -> Sequence[str]:
        """Symbols without a token: text with these cannot be encoded as it is."""
        ...


SYMBOLS: Final[Mapping[str, Symbols]] = {
    "bytes": ByteLevel(),
    "characters": CharacterLevel(),
    "sentencepiece": SentencePiece(),
}


def symbols_of(pre: PreTokenizer) -> Symbols:
    """The symbols a pre-tokenizer asks for."""
    if pre.symbols not in SYMBOLS:
        raise UnsupportedModelError(
            f"pre-tokenizer {pre.name!r} merges {pre.symbols!r} symbols; this version of kinfolk "
            f"knows {', '.join(map(repr, SYMBOLS))}: install a newer one"
        )
    return SYMBOLS[pre.symbols]

"""Symbols of BPE: the alphabet that merging starts from, and how token texts spell bytes.

A family selects an entry of :data:`SYMBOLS` by name, in
:attr:`kinfolk.text.formats.PreTokenizer.symbols`.
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
    """A spelling of bytes as mergeable symbols."""

    space_prefix: bool
    """Whether a text gets a space prefix unless the file disables it."""

    scored: bool
    """Whether merges are derived from token scores if the file lists none."""

    def literal(self, text: str) -> str:
        """The plain text that a user-defined token with this token text matches and decodes to."""
        ...

    def token_bytes(self, text: str) -> bytes:
        """The bytes that a normal token with this token text decodes to."""
        ...

    def build(
        self,
        vocabulary: Vocabulary,
        merges: list[tuple[str, str]],
        pre: PreTokenizer,
    ) -> tokenizers.Tokenizer:
        """A tokenizer of plain text, without special tokens."""
        ...

    def encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        """Ids of a plain text, with a tokenizer from ``build``."""
        ...

    def missing(self, ids: Mapping[str, int]) -> Sequence[str]:
        """Symbols that have no token: text with them cannot be encoded without loss."""
        ...


SYMBOLS: Final[Mapping[str, Symbols]] = {
    "bytes": ByteLevel(),
    "characters": CharacterLevel(),
    "sentencepiece": SentencePiece(),
}


def symbols_of(pre: PreTokenizer) -> Symbols:
    """The symbols of a pre-tokenizer. Raises :class:`UnsupportedModelError` for an unknown name."""
    if pre.symbols not in SYMBOLS:
        raise UnsupportedModelError(
            f"pre-tokenizer {pre.name!r} merges {pre.symbols!r} symbols; this version of kinfolk "
            f"knows {', '.join(map(repr, SYMBOLS))}: install a newer one"
        )
    return SYMBOLS[pre.symbols]

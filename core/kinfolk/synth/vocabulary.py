"""A vocabulary of any size without a corpus: symbols, pairs of symbols, triples of symbols.

It encodes every text and gives it back; the pieces are short and mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

import numpy as np

from kinfolk.descriptors import VocabularyOutline
from kinfolk.text.byte_level import LETTER_OF_BYTE
from kinfolk.text.character_level import SPACE, byte_token
from kinfolk.text.vocabulary import ADD_BOS, BOS, EOS, MERGES, SCORES, TOKEN_TYPE, TOKENS, TokenType

_COMMON: Final = " etaoinshrdlcumwfgypbvkjxqz\n"
_MOST_LINE_ENDS: Final = 31

Merge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Alphabet:
    """Tokens that are no merges, with their types, and the symbols to merge, common ones first."""

    tokens: tuple[tuple[str, TokenType], ...]
    symbols: tuple[str, ...]

    def ordinary(self, count: int) -> tuple[list[str], list[TokenType], list[Merge]]:
        """Texts and types of ``count`` tokens, and the merges among them."""
        merges = list(islice(_merges(self.symbols), count - len(self.tokens)))
        texts = [text for text, _ in self.tokens] + [left + right for left, right in merges]
        types = [kind for _, kind in self.tokens] + [TokenType.NORMAL] * len(merges)
        return texts, types, merges


def tokenizer_keys(outline: VocabularyOutline) -> Mapping[str, object]:
    """The ``tokenizer.*`` keys of a file, in order."""
    characters = outline.symbols != "bytes"
    scored = outline.symbols == "sentencepiece"
    padding = 0
    if outline.padded and not characters:
        padding = outline.size - outline.first_special - len(outline.specials)
    alphabet = _characters() if characters else _bytes()
    texts, types, merges = alphabet.ordinary(outline.size - padding - len(outline.specials))
    first = outline.first_special
    texts[first:first] = [text for text, _ in outline.specials]
    types[first:first] = [
        TokenType.CONTROL if control else TokenType.USER_DEFINED for _, control in outline.specials
    ]
    texts += [f"[PAD{len(texts) + index}]" for index in range(padding)]
    types += [TokenType.UNUSED] * padding
    keys: dict[str, object] = {"tokenizer.ggml.model": outline.pre if characters else "gpt2"}
    if not characters:
        keys["tokenizer.ggml.pre"] = outline.pre
    keys[TOKENS] = texts
    if characters:
        scores = -np.arange(outline.size) if scored else np.full(outline.size, -1000)
        keys[SCORES] = scores.astype(np.float32)
    keys[TOKEN_TYPE] = np.array(types, np.int32)
    if not scored:
        keys[MERGES] = [f"{left} {right}" for left, right in merges]
    keys |= {
        EOS: texts.index(outline.eos, first),
        "tokenizer.ggml.padding_token_id": texts.index(outline.padding, first),
    }
    if outline.bos:
        keys[BOS] = texts.index(outline.bos, first)
    if characters:
        keys["tokenizer.ggml.add_space_prefix"] = False
    keys[ADD_BOS] = bool(outline.bos)
    if outline.chat_template:
        keys["tokenizer.chat_template"] = outline.chat_template
    return keys


def _bytes() -> _Alphabet:
    """Each byte as its letter."""
    common = [ord(character) for character in _COMMON]
    order = common + [byte for byte in range(256) if byte not in common]
    letters = tuple((LETTER_OF_BYTE[byte], TokenType.NORMAL) for byte in range(256))
    return _Alphabet(letters, tuple(LETTER_OF_BYTE[byte] for byte in order))


def _characters() -> _Alphabet:
    """Runs of line ends, a token for each byte, and printable ASCII, which is what merges."""
    common = _COMMON.replace("\n", "")
    rest = (character for character in map(chr, range(0x21, 0x7F)) if character not in common)
    symbols = (*common.replace(" ", SPACE), *rest)
    runs = ("\n" * length for length in range(1, _MOST_LINE_ENDS + 1))
    return _Alphabet(
        (
            *((run, TokenType.NORMAL) for run in runs),
            *((byte_token(byte), TokenType.BYTE) for byte in range(256)),
            *((symbol, TokenType.NORMAL) for symbol in symbols),
        ),
        symbols,
    )


def _merges(symbols: tuple[str, ...]) -> Iterator[Merge]:
    """All pairs of symbols, then triples: a pair and a symbol."""
    pairs = [left + right for left, right in product(symbols, symbols)]
    yield from product(symbols, symbols)
    yield from product(pairs, symbols)

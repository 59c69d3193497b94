"""A byte-level vocabulary of any size without a corpus: bytes, pairs of bytes, triples of bytes.

It encodes every text and gives it back; the pieces are short and mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Final

import numpy as np

from kinfolk.descriptors import VocabularyOutline
from kinfolk.text.byte_level import LETTER_OF_BYTE
from kinfolk.text.vocabulary import ADD_BOS, EOS, MERGES, TOKEN_TYPE, TOKENS, TokenType

_COMMON: Final = " etaoinshrdlcumwfgypbvkjxqz\n"


def tokenizer_keys(outline: VocabularyOutline) -> Mapping[str, object]:
    """The ``tokenizer.*`` keys of a file, in order."""
    bytes_ = [LETTER_OF_BYTE[byte] for byte in range(256)]
    merges = list(islice(_merges(), outline.first_special - len(bytes_)))
    ordinary = bytes_ + [left + right for left, right in merges]
    specials = [text for text, _ in outline.specials]
    tokens = ordinary + specials
    padding = outline.size - len(tokens)
    types = [
        *[TokenType.NORMAL] * len(ordinary),
        *(TokenType.CONTROL if control else TokenType.USER_DEFINED
          for _, control in outline.specials),
        *[TokenType.UNUSED] * padding,
    ]  # fmt: skip
    keys: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": outline.pre,
        TOKENS: tokens + [f"[PAD{len(tokens) + index}]" for index in range(padding)],
        TOKEN_TYPE: np.array(types, np.int32),
        MERGES: [f"{left} {right}" for left, right in merges],
        EOS: outline.first_special + specials.index(outline.eos),
        "tokenizer.ggml.padding_token_id": (
            outline.first_special + specials.index(outline.padding)
        ),
        ADD_BOS: False,
    }
    if outline.chat_template:
        keys["tokenizer.chat_template"] = outline.chat_template
    return keys


def _merges() -> Iterator[tuple[str, str]]:
    """All pairs of bytes, then triples: a pair and a byte. Common letters come first."""
    common = [ord(character) for character in _COMMON]
    order = common + [byte for byte in range(256) if byte not in common]
    letters = [LETTER_OF_BYTE[byte] for byte in order]
    pairs = [left + right for left, right in product(letters, letters)]
    yield from product(letters, letters)
    yield from product(pairs, letters)

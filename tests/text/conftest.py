"""Vocabularies small enough to read, and the tokenizer of the reference case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.text.formats import ChatFormat, PreTokenizer
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_qwen35.text import CHAT, PRETOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class StubFamily:
    """The two members of a family that a tokenizer reads."""

    name: str
    claims: tuple[PreTokenizer, ...]

    def pretokenizers(self) -> tuple[PreTokenizer, ...]:
        return self.claims


QWEN35 = StubFamily("qwen35", PRETOKENIZERS)


def byte_letters() -> list[str]:
    """The letters of the 256 bytes in order, computed from their definition."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def metadata(
    merges: Sequence[str] = (),
    specials: Sequence[tuple[str, int]] = (),
    /,
    **keys: Any,
) -> Metadata:
    """A byte-level vocabulary: 256 letters, merged tokens, then tokens of other types.

    ``keys`` are further ``tokenizer.ggml.*`` keys.
    """
    merged = [left + right for left, right in (merge.split(" ") for merge in merges)]
    tokens = [*byte_letters(), *merged, *(text for text, _ in specials)]
    types = [NORMAL] * (256 + len(merged)) + [kind for _, kind in specials]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": tokens,
        "token_type": types,
        "merges": list(merges),
        **keys,
    }
    return Metadata.from_dict(
        {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None},
        Path("model.gguf"),
    )


@pytest.fixture(scope="session")
def stub_family() -> type[StubFamily]:
    return StubFamily


class PlainBPE:
    """A simple and slow reference of byte-level merging.

    Text is split by each of ``patterns`` in turn; text that a pattern does not match is dropped.
    """

    def __init__(self, meta: Metadata, *patterns: str):
        tokens = list(meta.strings("tokenizer.ggml.tokens"))
        merges = meta.strings("tokenizer.ggml.merges")
        types = meta.integers("tokenizer.ggml.token_type").tolist()
        specials = [
            text
            for text, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
        self.patterns = [regex.compile(pattern) for pattern in patterns]
        self.letters = byte_letters()
        self.ids = {text: token for token, text in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.specials = regex.compile(
            "(" + "|".join(map(regex.escape, sorted(specials, key=len, reverse=True))) + ")"
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(self.specials.split(text)):
            if index % 2:
                ids.append(self.ids[part])
            else:
                for word in self.cut(part):
                    ids.extend(self.ids[symbol] for symbol in self.merge(word))
        return ids

    def cut(self, text: str) -> list[str]:
        pieces = [text]
        for pattern in self.patterns:
            pieces = [word for piece in pieces for word in pattern.findall(piece)]
        return pieces

    def merge(self, word: str) -> list[str]:
        symbols = [self.letters[byte] for byte in word.encode("utf-8")]
        while True:
            ranked = [
                (self.ranks[pair], place)
                for place, pair in enumerate(pairwise(symbols))
                if pair in self.ranks
            ]
            if not ranked:
                return symbols
            _, place = min(ranked)
            symbols[place : place + 2] = ["".join(symbols[place : place + 2])]


@pytest.fixture(scope="session")
def plain_bpe() -> type[PlainBPE]:
    return PlainBPE


@pytest.fixture(scope="session")
def make_metadata() -> Callable[..., Metadata]:
    return metadata


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Tokenizer]:
    """A tokenizer over :func:`metadata`'s arguments, and ``chat``."""

    def make(*args: Any, chat: ChatFormat | None = None, **keys: Any) -> Tokenizer:
        return Tokenizer.from_metadata(metadata(*args, **keys), [QWEN35], chat=chat)

    return make


@pytest.fixture(scope="session")
def case_metadata(cases: Path) -> Metadata:
    """The metadata of the reference case, with a trained vocabulary of 768 tokens."""
    return GGUFFile.open(cases / "qwen35.gguf").metadata


@pytest.fixture(scope="session")
def case_tokenizer(case_metadata: Metadata) -> Tokenizer:
    return Tokenizer.from_metadata(case_metadata, [QWEN35], own="qwen35", chat=CHAT)


@pytest.fixture(scope="session")
def adversarial() -> Mapping[str, str]:
    """Strings that tokenizers get wrong, named by their difficulty."""
    return {
        "empty": "",
        "one space": " ",
        "spaces": "     ",
        "leading space": " a",
        "trailing spaces": "a   ",
        "inner spaces": "a  b   c",
        "newline": "\n",
        "newlines": "\n\n\n",
        "newlines then indentation": "a  b\n\n\n  x",
        "crlf": "a\r\nb\r\n\r\nc\r\n",
        "carriage returns": "\r\r\n\r",
        "spaces before a newline": "x   \n   y",
        "newlines after punctuation": "foo!!\n\nbar",
        "semicolon and crlf": "x;\r\ny;\r\n",
        "tabs": "\tif x:\n\t\treturn\t1\n",
        "digits": "1234567890",
        "digits and words": "a1b22c333 12 3",
        "other digits": "٣٤٥ ⅷ ½ ² ๓",
        "contractions": "I'LL we've it's don't you're I'm he'd 'sup",
        "long s": "'ſa'ſ",
        "typographic apostrophe": "it’s",
        "code": "def f(x, *, y=None):\n    return [x] * (y or 1)  # ok\n",
        "json": '{"a": [1, 2.5e-3, null], "b": "\\u00e9"}',
        "url": "https://example.org/a%20b?q=1&r=[2]#frag",
        "underscores": "__init__ _x x_ snake_case_name",
        "composed accent": "été",
        "decomposed accent": "e\u0301te\u0301 x",
        "stacked marks": "Z\u0351\u036b\u0343a\u0328\u0301",
        "a mark alone": "\u0301",
        "mark after a space": "a \u0301b",
        "devanagari": "हिन्दी में",
        "thai": "ภาษาไทย",
        "arabic": "السلام عليكم",
        "hebrew with points": "שָׁלוֹם",
        "chinese": "你好，世界。",
        "japanese": "カタカナ と ひらがな",
        "hangul, composed and not": "한글 \u1112\u1161\u11ab",
        "emoji": "🙂🙃",
        "emoji family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "emoji with skin and variation": "👍🏽 ❤\ufe0f 🏳\ufe0f\u200d🌈",
        "flags": "🇫🇷🇩🇪",
        "astral letters": "𝔘𝔫𝔦 𐍈",
        "non-breaking space": "a\u00a0b\u00a0\u00a0c",
        "wide spaces": "a\u2003\u3000b\u2028c\u2029d\u0085e",
        "zero width": "a\u200bb\ufeffc\u2060d",
        "control characters": "a\x00b\x01\x7f\x1b[0m",
        "nul": "\x00\x00",
        "private use and unassigned": "\ue000 \U000e0001 \u0378",
        "replacement character": "\ufffd",
        "byte letters in text": "ĠaĊb Ā",
        "specials": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "specials without space": "a<think>b</think>c",
        "specials twice": "<think><think></think></think>",
        "broken specials": "<|im_start|<|im_end|>|> <think <|endoftext|",
        "special next to newlines": "\n\n<|im_end|>\n\n",
        "mixed": "  Ünï\tcødé\r\n\r\n’42’ <think>e\u0301\x00</think>🙂\n",
    }


@pytest.fixture(scope="session")
def make_pre() -> Callable[..., PreTokenizer]:
    return lambda name, *patterns: PreTokenizer(name, patterns)

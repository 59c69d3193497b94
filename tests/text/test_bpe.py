"""Long texts take another call of the library, which lets other threads run, to the same ids."""

from __future__ import annotations

import random

import pytest

from kinfolk.errors import RequestError
from kinfolk.gguf.file import GGUFFile
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.text import bpe
from kinfolk.text.tokenizer import Tokenizer

WORDS = [
    "def f(x):",
    "\n\n",
    "    return",
    "naïve",
    "汉字",
    "🙂",
    "  ",
    "\t",
    "1234",
    "'ll",
    "€",
    "<|im_end|>",
]


def test_a_text_that_the_library_gives_up_on_is_an_error_of_the_request():
    class PanicException(BaseException):
        """As of the library."""

    class GivesUp:
        def encode_batch_fast(self, texts, add_special_tokens):
            raise PanicException("retry-limit-in-match over")

    with pytest.raises(RequestError, match="of 5000 characters cannot be tokenised"):
        bpe.encode_bpe(GivesUp(), " " * 5000)


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "gemma4", "laguna"])
def test_long_texts_have_the_ids_of_the_short_way(name, cases, monkeypatch):
    families = [one.value for one in Registry.discover(load_settings()).families.values()]
    with GGUFFile.open(cases / f"{name}.gguf") as file:
        tokenizer = Tokenizer.from_metadata(file.metadata, families)
    source = random.Random(5)
    for length in (1, 60, 4000):
        text = "".join(source.choice(WORDS) + source.choice(["", " "]) for _ in range(length))
        monkeypatch.setattr(bpe, "SHORT_TEXT", 10**9)
        expected = tokenizer.encode_plain(text)
        monkeypatch.setattr(bpe, "SHORT_TEXT", 0)
        assert tokenizer.encode_plain(text) == expected
    assert tokenizer.encode_plain("") == []

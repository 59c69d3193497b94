"""The tokens of a sequence as another model reads them, and the chunks that their scores are of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.engine.text import open_text
from kinfolk.errors import RequestError
from kinfolk.registry import Registry
from kinfolk.residency.read_tokens import SameTokens, TokensThroughText
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS


@pytest.fixture(scope="module")
def tokenizers(cases):
    settings = load_settings()
    registry = Registry.discover(settings)
    names = ("qwen35", "gemma4", "laguna")
    return [open_text(cases / f"{name}.gguf", settings, registry)[0] for name in names]


def portions(data, tokens):
    """The tokens in portions of any length, some of which are empty."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    return [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]


def reference(tokenizer, reader, tokens, read, chunks):
    """Of each chunk the numbers of the tokens read whose middle is in its text, counted byte by
    byte: the owner of each byte is the token of the sequence that completes its character."""
    owners, raw = [], b""
    for number, token in enumerate(tokens):
        raw += tokenizer.bytes_after(tokens[number - 1] if number else None, token)
        done = raw.decode(errors="ignore").encode()
        owners += [number // CHUNK_POSITIONS] * (len(done) - len(owners))
    found, place = [[] for _ in range(chunks)], 0
    for number, token in enumerate(read):
        nbytes = len(reader.bytes_after(None, token)) if token != reader.bos else 0
        middle = place + nbytes / 2
        place += nbytes
        chunk = owners[min(int(middle), len(owners) - 1)]
        if chunk < chunks:
            found[chunk].append(number)
    assert place == len(owners), "the tokens spell the text"
    return found


@given(data=st.data())
def test_a_token_read_as_text_belongs_to_the_chunk_in_which_its_middle_is(tokenizers, data):
    tokenizer, reader = data.draw(st.permutations(tokenizers))[:2]
    words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=6)
    text = data.draw(st.lists(words | st.sampled_from(["éß日本 ", "def f(x):\n"]), min_size=30))
    tokens = tokenizer.encode("x".join(text), add_bos=False, parse_special=False)
    known = TokensThroughText(tokenizer, reader)
    for portion in portions(data, tokens):
        known.extend(portion)
    assert known.count == len(tokens)
    chunks = len(tokens) // CHUNK_POSITIONS
    scores = np.random.default_rng(0).random(len(known.ids), np.float32)
    expected = reference(tokenizer, reader, tokens, known.ids, chunks)
    means = [scores[inside].mean(dtype=np.float64) if inside else 0.0 for inside in expected]
    assert np.allclose(known.chunk_scores(scores, chunks), means, rtol=1e-6)


def test_a_character_of_several_tokens_is_read_when_it_is_complete(tokenizers):
    tokenizer, _, reader = tokenizers
    tokens = tokenizer.encode("日本")
    assert len(tokens) > 2, "a token is a part of a character here"
    known = TokensThroughText(tokenizer, reader)
    known.extend(tokens[:1])
    assert not known.ids
    known.extend(tokens[1:])
    assert reader.decode(known.ids) == "日本"


def test_the_beginning_of_a_text_is_that_of_the_model_that_reads(tokenizers):
    qwen, gemma, laguna = tokenizers
    known = TokensThroughText(qwen, gemma)
    known.extend(qwen.encode("one two"))
    known.extend(qwen.encode(" three"))
    assert [*known.ids].count(gemma.bos) == 1
    back = TokensThroughText(gemma, laguna)
    back.extend(gemma.encode("one two"))
    assert laguna.decode(back.ids) == "one two"


def test_the_same_tokens_are_read_by_their_ids():
    known = SameTokens(1000)
    tokens = np.random.default_rng(0).integers(0, 1000, 200).tolist()
    known.extend(tokens[:90])
    known.extend(tokens[90:])
    assert known.ids == tokens
    scores = np.arange(200, dtype=np.float32)
    assert known.chunk_scores(scores, 3) == (31.5, 95.5, 159.5)
    assert known.chunk_scores(scores, 0) == ()


def test_tokens_that_cannot_be_read_are_refused(tokenizers):
    with pytest.raises(ValueError, match="token 5 is outside of the vocabulary of 5"):
        SameTokens(5).extend([1, 5])
    with pytest.raises(RequestError, match="outside of the vocabulary"):
        TokensThroughText(*tokenizers[:2]).extend([10**6])

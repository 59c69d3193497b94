"""Hashed tokens, and the prefix cache's look-up compared with a plain search."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.state.chunks import Checkpoint
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache
from kinfolk.types import CHUNK_POSITIONS

LENGTHS = st.integers(1, 300) | st.sampled_from([63, 64, 65, 127, 128, 129, 192, 256])


@st.composite
def texts(draw):
    """Tokens that agree with those of other draws up to a few places."""
    tokens = list(range(draw(LENGTHS)))
    for place in draw(
        st.lists(st.sampled_from([0, 1, 62, 63, 64, 100, 128, 191, 200]), max_size=2)
    ):
        if place < len(tokens):
            tokens[place] = 2**40
    return tuple(tokens)


@pytest.fixture
def cache():
    """A prefix cache whose checkpoints hold nothing."""
    return empty_cache()


def empty_cache(*, any_chunk=False):
    store = SimpleNamespace(drop=lambda checkpoint: None, any_chunk=any_chunk, pools=())
    return PrefixCache(store, 1000)


def plain_search(prefixes, prompt, *, any_chunk):
    """The longest beginning of ``prompt`` that is one of ``prefixes`` or, with ``any_chunk``, that
    is whole chunks of one, and leaves at least a token."""
    lengths = [0]
    for each in prefixes:
        same = next(
            (n for n, (one, other) in enumerate(zip(each, prompt, strict=False)) if one != other),
            min(len(each), len(prompt)),
        )
        if same == len(each) < len(prompt):
            lengths.append(same)
        if any_chunk:
            lengths.append(min(same, len(prompt) - 1) // CHUNK_POSITIONS * CHUNK_POSITIONS)
    return max(lengths)


@given(
    stored=st.lists(texts(), max_size=12),
    prompt=texts(),
    cut=st.integers(0, 299),
    any_chunk=st.booleans(),
)
def test_a_look_up_finds_what_a_plain_search_finds(stored, prompt, cut, any_chunk):
    """Prefixes of any length, some of them stored behind more tokens than are theirs."""
    cache = empty_cache(any_chunk=any_chunk)
    prefixes = []
    for text in stored:
        length = max(1, len(text) - cut)
        cache.insert(HashedTokens(text), Checkpoint(length, 0, ()))
        prefixes.append(text[:length])
    hashed = HashedTokens(prompt)
    found = cache.find(hashed)
    assert (found.length if found else 0) == plain_search(prefixes, prompt, any_chunk=any_chunk)
    assert found is None or found.entry.tokens.prefix(found.length) == prompt[: found.length]
    assert len(cache) == len(set(prefixes))
    for length in {len(prompt), *(len(each) for each in prefixes if len(each) <= len(prompt))}:
        assert cache.holds(hashed, length) == (prompt[:length] in prefixes)


@given(texts(), st.integers(0, 300))
def test_tokens_that_are_added_are_hashed_like_those_given_at_once(text, cut):
    grown = HashedTokens(text[:cut]).followed_by(text[cut:])
    whole = HashedTokens(text)
    assert (grown.packed, grown.chain) == (whole.packed, whole.chain)
    assert grown.prefix(cut) == text[:cut]
    assert len(whole) == len(text)


def test_equal_hashes_of_other_tokens_are_not_believed(cache):
    stored = HashedTokens(range(2 * CHUNK_POSITIONS))
    cache.insert(stored, Checkpoint(len(stored), 0, ()))
    other = HashedTokens([7, *range(1, 3 * CHUNK_POSITIONS)])
    other.chain[:3] = stored.chain
    assert cache.find(other) is None
    assert not cache.holds(other, len(stored))


def test_a_look_up_compares_long_prompts_once_however_many_prefixes_there_are(cache, monkeypatch):
    """Prefixes that differ behind their last full chunk alone have the same hash."""
    text = tuple(range(40 * CHUNK_POSITIONS))
    for last in range(50):
        cache.insert(HashedTokens((*text, last)), Checkpoint(len(text) + 1, 0, ()))
    compared = []
    plain = HashedTokens.starts_like
    monkeypatch.setattr(
        HashedTokens, "starts_like", lambda *rest: compared.append(plain(*rest)) or compared[-1]
    )
    assert cache.find(HashedTokens((*text, 49, 0))).length == len(text) + 1
    assert sum(compared) == 1
    assert len(compared) <= 50


def test_tokens_of_another_root_have_the_chain_of_that_root():
    tokens = list(range(200))
    assert HashedTokens(tokens).with_root(7).chain == HashedTokens(tokens, root=7).chain
    assert HashedTokens(tokens).with_root(7).prefix(150) == tuple(tokens[:150])
    longer = HashedTokens(tokens).with_root(7).followed_by([1] * 100)
    assert longer.chain == HashedTokens(tokens + [1] * 100, root=7).chain

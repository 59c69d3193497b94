"""Prompt lookup drafts the tokens after the longest earlier occurrence of the suffix."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.draft_api import Drafter
from kinfolk.spec import ngram
from kinfolk.spec.ngram import MAX_N, MIN_N, PromptLookup


@pytest.mark.parametrize(
    ("known", "limit", "draft"),
    [
        ([], 4, []),
        ([1, 2], 4, []),
        ([1, 2, 3, 4], 4, []),
        ([1, 2, 3, 1, 2], 2, [3, 1]),
        ([1, 2, 3, 1, 2], 0, []),
        # The longer match wins over the later one ...
        ([5, 1, 2, 7, 9, 1, 2, 8, 5, 1, 2], 1, [7]),
        # ... and among equally long ones the latest.
        ([1, 2, 7, 1, 2, 8, 1, 2], 1, [8]),
        # A loop goes on beyond the end of the text.
        ([4, 4, 4, 4], 5, [4, 4, 4]),
        ([1, 2, 3, 1, 2, 3, 1, 2], 7, [3, 1, 2, 3, 1]),
        # A draft is as long as the match.
        ([1, 2, 3, 4, 5, 6, 1, 2], 4, [3, 4]),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 4, [4, 5, 6]),
    ],
)
def test_the_draft_of_a_text(known, limit, draft):
    assert PromptLookup().propose(known, limit) == draft


def brute_force(known: list[int], limit: int) -> list[int]:
    for size in range(max(MAX_N, limit), MIN_N - 1, -1):
        for stop in range(len(known) - 1, size - 1, -1):
            if known[stop - size : stop] == known[len(known) - size :]:
                draft = list(known)
                for position in range(stop, stop + min(limit, size)):
                    draft.append(draft[position])
                return draft[len(known) :]
    return []


@given(
    start=st.lists(st.integers(0, 3), max_size=30),
    steps=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=20),
    limit=st.integers(0, 6),
)
def test_a_growing_index_finds_what_a_search_of_the_whole_text_finds(start, steps, limit):
    drafter, known = PromptLookup(), list(start)
    assert drafter.propose(known, limit) == brute_force(known, limit)
    for step in steps:
        known += step
        assert drafter.propose(known, limit) == brute_force(known, limit)


def test_texts_do_not_mix():
    drafter = PromptLookup()
    first, second = [1, 2, 3, 1, 2], [1, 2, 4, 1, 2]
    assert drafter.propose(first, 1) == [3]
    assert drafter.propose(second, 1) == [4]
    assert drafter.propose(first, 1) == [3]


def test_a_released_text_is_forgotten_and_can_come_back():
    drafter = PromptLookup()
    known = [1, 2, 3, 1, 2]
    drafter.propose(known, 1)
    drafter.release(known)
    drafter.release(known)
    known[:] = [1, 2, 4, 1, 2]
    assert drafter.propose(known, 1) == [4]


def test_a_long_text_is_indexed_over_several_steps(monkeypatch):
    monkeypatch.setattr(ngram, "GROWTH", 10)
    drafter = PromptLookup()
    known = [*range(100, 130), 1, 2, 3, *range(50), 1, 2]
    drafts = [drafter.propose(known, 1) for _ in range(6)]
    assert drafts[0] == []
    assert drafts[-1] == [3]


def test_copied_text_comes_at_ten_tokens_a_step_and_more():
    """A model that repeats its prompt: the matches grow, and with them the drafts."""
    original = random.Random(0).choices(range(5000), k=400)
    drafter, known, steps = PromptLookup(), [*original, *original[:2]], 0
    while len(known) < 800:
        draft = drafter.propose(known, 15)
        rest = original[len(known) - 400 :]
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(draft, rest, strict=False))
        known += rest[: 1 + sum(1 for _ in pairs)]
        steps += 1
    assert 398 / steps >= 10


def test_the_core_creates_one_for_any_model():
    drafter: Drafter = ngram.create(None)
    assert drafter.propose([7, 7, 7], 1) == [7]

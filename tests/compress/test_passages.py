"""Which passages of a prompt are kept, against a plain definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.compress.passages import (
    FEWEST_TOKENS,
    PASSAGE_TOKENS,
    ends,
    kept_count,
    passage_scores,
    select_passages,
    smoothed,
    standardized,
)


def plain_selection(tokens, scores, ratio, query=None):
    """The rules one after another, with lists."""
    count = math.ceil(len(tokens) / 32)
    if len(tokens) < 9:
        return list(range(count))
    mean = [
        sum(scores[max(0, j - 6) : j + 7]) / len(scores[max(0, j - 6) : j + 7])
        for j in range(len(scores))
    ]
    parts = [mean[start : start + 32] for start in range(0, len(mean), 32)]
    of_passage = [sum(part) / len(part) for part in parts]
    wanted = max(1, math.floor(count * ratio + 1e-9))
    head, tail = 8, 24
    if head + tail >= wanted:
        budget = max(1, wanted - 1)
        head = head * budget // 32
        tail = budget - head
    kept = {c for c in range(count) if c < head or c >= count - tail}
    body = tokens
    if query is None:
        body, query = tokens[:-96], tokens[-96:]
    radius, hits = (2, 8) if count < 1024 else (4, 16) if count < 2048 else (8, 32)
    for q in range(len(query) - 3):
        matches = [p for p in range(len(body) - 3) if body[p : p + 4] == query[q : q + 4]]
        if 1 <= len(matches) <= hits:
            for match in matches:
                near = range(match // 32 - radius, match // 32 + radius + 1)
                kept |= {c for c in near if 0 <= c < count}
    for c in sorted(range(count), key=lambda c: -of_passage[c]):
        if len(kept) >= wanted:
            break
        kept.add(c)
    return sorted(kept)


def select(tokens, scores, ratio, query=None):
    query = None if query is None else np.array(query, np.int64)
    return select_passages(np.array(tokens, np.int64), np.array(scores, np.float32), ratio, query)


@given(st.data())
def test_a_selection_is_that_of_the_plain_rules(data):
    length = data.draw(st.integers(0, 700))
    few = data.draw(st.integers(2, 40))
    seed = data.draw(st.integers(0, 2**32))
    random = np.random.default_rng(seed)
    tokens = random.integers(0, few, length).tolist()
    scores = random.permutation(length).astype(float).tolist()
    ratio = data.draw(st.floats(0.01, 1))
    query = None
    if data.draw(st.booleans()):
        query = random.integers(0, few, data.draw(st.integers(0, 30))).tolist()
    assert select(tokens, scores, ratio, query) == plain_selection(tokens, scores, ratio, query)


@pytest.mark.parametrize(
    ("tokens", "ratio", "kept", "head", "tail"),
    [(131072, 0.05, 204, 8, 24), (4096, 0.05, 6, 1, 4), (32, 0.05, 1, 0, 1), (10, 1.0, 1, 0, 1)],
)
def test_the_ends_get_their_share_of_a_small_budget(tokens, ratio, kept, head, tail):
    passages = math.ceil(tokens / PASSAGE_TOKENS)
    assert kept_count(passages, ratio) == kept
    assert ends(kept) == (head, tail)


def test_a_ratio_that_is_no_binary_number_keeps_what_it_says():
    assert kept_count(100, 0.29) == 29
    assert kept_count(1000, 0.001) == 1


def test_what_the_query_names_is_kept_although_it_scores_worst():
    random = np.random.default_rng(0)
    tokens = random.permutation(6400)
    tokens[3000:3006] = tokens[-40:-34]
    scores = np.ones(6400)
    scores[2900:3100] = -1
    passage = 3000 // 32
    kept = select(tokens.tolist(), scores.tolist(), 0.1)
    assert {passage - 2, passage - 1, passage, passage + 1, passage + 2} <= set(kept)
    # Without the match it is not.
    tokens[3000:3006] = range(9000, 9006)
    assert passage not in select(tokens.tolist(), scores.tolist(), 0.1)


def test_what_stands_everywhere_is_no_anchor():
    tokens = list(range(6400))
    for place in range(0, 5760, 640):
        tokens[place + 320 : place + 324] = tokens[-40:-36]
    scores = [0.0] * 6400
    nine = select(tokens, scores, 0.05)
    assert nine == select(list(range(6400)), scores, 0.05)


def test_the_best_scored_passages_fill_what_is_left():
    tokens, scores = list(range(3200)), [0.0] * 3200
    for place in (40 * 32, 55 * 32):
        scores[place : place + 32] = [5.0] * 32
    kept = select(tokens, scores, 0.34)
    assert len(kept) == 34
    assert {40, 55} <= set(kept)
    assert set(range(8)) | set(range(76, 100)) <= set(kept)


def test_a_short_text_is_kept_whole():
    short = list(range(FEWEST_TOKENS - 1))
    assert select(short, [0.0] * len(short), 0.01) == [0]
    assert select([], [], 0.5) == []


def test_scores_of_other_tokens_are_refused():
    with pytest.raises(ValueError, match="20 tokens have 19 scores"):
        select(list(range(20)), [0.0] * 19, 0.5)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=90))
def test_means_of_scores_are_those_of_their_neighbours(values):
    found = smoothed(np.array(values, np.float32))
    expected = [np.mean(np.float32(values[max(0, j - 6) : j + 7])) for j in range(len(values))]
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-3)
    parts = [np.mean(np.float32(values[at : at + 32])) for at in range(0, len(values), 32)]
    assert np.allclose(passage_scores(np.array(values, np.float32)), parts, rtol=1e-4, atol=1e-3)


def test_standardized_scores_can_be_compared():
    raw = np.random.default_rng(1).normal(7, 3, 500).astype(np.float32)
    ranks = standardized(raw)
    assert abs(float(ranks.mean())) < 1e-5
    assert float(ranks.std()) == pytest.approx(1, abs=1e-4)
    assert np.array_equal(np.argsort(raw), np.argsort(ranks))
    assert np.array_equal(standardized(np.full(4, 2.0, np.float32)), np.zeros(4, np.float32))

"""Prompt look-up with several candidates: which occurrences are continued, and as which tree."""

from __future__ import annotations

import importlib
import random
import sys

import pytest
import torch

from kinfolk.spec.ngram import PromptLookup

CONTEXT = 256


@pytest.fixture(scope="module")
def drafter(repo):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repo / "benchmarks"))
        yield importlib.import_module("lookup_trees")
        del sys.modules["lookup_trees"]


def found(drafter, *texts):
    """The continuations of texts, behind which lies what is left of rejected rows."""
    padded = [[*text, *text[: CONTEXT - len(text)]] for text in texts]
    rows = [row + [0] * (CONTEXT - len(row)) for row in padded]
    last = torch.tensor([[len(text) - 1] for text in texts])
    return drafter.continuations(torch.tensor(rows), last)


def tokens_of(row):
    return [token for token in row.tolist() if token >= 0]


def paths(proposals, lane=0):
    """The tokens from the root to each node."""
    tokens = proposals.tokens[lane].flatten().tolist()
    there = (proposals.scores[lane].flatten() > -torch.inf).tolist()
    known = {-1: ()}
    for node, parent in enumerate(proposals.parents[lane].tolist()):
        if there[node]:
            known[node] = (*known[parent], tokens[node])
    del known[-1]
    return list(known.values())


def test_the_longest_matches_come_first_and_of_equal_ones_the_latest(drafter):
    text = [*(1, 2, 3, 40, 41), *(9, 2, 3, 50, 51), *(8, 2, 3, 60, 61), *(5, 2, 3, 70), *(1, 2, 3)]
    (rows,) = found(drafter, text)
    assert [tokens_of(row) for row in rows] == [[40, 41, 9], [70, 1], [60, 61]]


def test_the_first_continuation_is_that_of_prompt_lookup(drafter):
    """In loops too, and where nothing matches."""
    texts = []
    for seed in range(40):
        source = random.Random(seed)
        texts.append([source.randrange(2 + seed % 4) for _ in range(source.randrange(2, 60))])
    texts += [[1, 2, 3, 4], [7] * 30, [1, 2, 3] * 12]
    rows = found(drafter, *texts)
    for text, row in zip(texts, rows, strict=True):
        assert tokens_of(row[0]) == PromptLookup().propose(text, drafter.DEPTH)


def test_a_common_beginning_is_shared_and_what_differs_are_siblings(drafter):
    rows = torch.full((1, drafter.CANDIDATES, drafter.DEPTH), -1)
    for row, tokens in zip(rows[0], ([4, 5, 6], [4, 5, 7, 8], [4, 9]), strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    expected = [(4,), (4, 5), (4, 9), (4, 5, 6), (4, 5, 7), (4, 5, 7, 8)]
    assert paths(drafter.merged(rows)) == expected


def test_a_tree_has_each_beginning_of_a_continuation_once(drafter):
    source = random.Random(1)
    texts = [[source.randrange(3) for _ in range(CONTEXT - 50)] for _ in range(8)]
    rows = found(drafter, *texts)
    proposals = drafter.merged(rows)
    for lane, row in enumerate(rows):
        beginnings = {
            tuple(tokens[:count])
            for tokens in map(tokens_of, row)
            for count in range(1, len(tokens) + 1)
        }
        found_paths = paths(proposals, lane)
        assert len(found_paths) == len(set(found_paths))
        assert set(found_paths) == beginnings
    assert bool((proposals.scores.diff(dim=2).nan_to_num(0) <= 0).all()), "they do not rise"

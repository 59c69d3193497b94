"""The policy, alone and in a loaded model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from kinfolk_scorer_demo.rare_tokens import RareTokens

from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.events import Finished
from kinfolk.sched.request import Request
from kinfolk.score_api import KEEP, ChunkQuery
from kinfolk.settings import load_settings

NAME = (801, 802, 803)


def text_of(chunks, places, question):
    """Random common tokens, in some chunks a name, and at the end a question."""
    source = random.Random(1)
    tokens = [source.randrange(50) for _ in range(64 * chunks)]
    for chunk in places:
        tokens[64 * chunk + 9 : 64 * chunk + 9 + len(NAME)] = NAME
    return [*tokens, *question]


def query_of(tokens, chunks):
    return ChunkQuery(
        tokens, len(tokens) - 1, chunks, np.ones(chunks, bool), np.zeros(chunks, np.int64), "prompt"
    )


def test_the_chunks_with_the_name_that_is_asked_for_are_worth_most():
    tokens = text_of(40, (3, 17), (7, 9, *NAME))
    scores = RareTokens().score_chunks(query_of(tokens, 40)).values
    assert set(scores.topk(2).indices.tolist()) == {3, 17}


def test_a_rare_token_counts_more_than_a_common_one():
    tokens = [*[1] * 64, *[1] * 63, 2, *[3] * 64, *[5] * 61, 1, 2, 3]
    scores = RareTokens().score_chunks(query_of(tokens, 3)).values.tolist()
    assert scores[1] > scores[2] > scores[0]


def test_where_no_chunk_has_any_of_the_tokens_all_stays():
    tokens = [*[1] * 128, *[2] * 64]
    assert RareTokens().score_chunks(query_of(tokens, 2)) is KEEP


@pytest.mark.parametrize("policy", ["rare-tokens", ""])
def test_switched_on_it_brings_chunks_back(policy):
    """The bundled model reads a text of several budgets; without any scorer nothing comes back."""
    torch.set_num_threads(1)
    settings = load_settings(
        device="cpu",
        draft="off",
        slots=1,
        policy=policy,
        kvflash=640,
        kvflash_burst=2,
        kvflash_policy="lru",
    )
    with Runtime.open(None, settings, Registry.discover(load_settings())) as runtime:
        vocabulary = runtime.info.vocabulary
        tokens = [token % vocabulary for token in text_of(24, (3,), (7, 9, *NAME))]
        events = list(runtime.engine.submit(Request("demo", tuple(tokens), 8)))
        stats = runtime.engine.stats()
    assert isinstance(events[-1], Finished)
    assert events[-1].error is None
    assert not events[-1].usage.exact
    assert stats["kvflash_evictions"] > 0
    assert (stats["kvflash_recalls"] > 0) == bool(policy)
    assert stats["kvflash_scorer_failures"] == 0

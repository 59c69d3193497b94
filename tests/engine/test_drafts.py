"""Speculation in the engine: drafts change speed and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from kinfolk.engine import score
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.spec.ngram import PromptLookup
from kinfolk.spec.sampling import sample
from kinfolk.testing.row_sampling import RowContext, row_sampling

# Random weights do not repeat themselves; a bias of 60 leaves them a handful of tokens.
BIASED_TOKENS = tuple((token, 60.0) for token in (11, 12, 13, 14))

SAMPLINGS = [
    Sampling(logit_bias=BIASED_TOKENS),
    Sampling(temperature=1, logit_bias=BIASED_TOKENS),
    Sampling(temperature=1.5, top_k=3, logit_bias=BIASED_TOKENS),
    Sampling(temperature=1, top_p=0.8, logit_bias=BIASED_TOKENS),
    Sampling(temperature=0.8, min_p=0.1, logit_bias=BIASED_TOKENS),
    Sampling(temperature=1, repetition_penalty=1.2, logit_bias=BIASED_TOKENS),
    Sampling(temperature=1, presence_penalty=0.4, frequency_penalty=0.05, logit_bias=BIASED_TOKENS),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.1, logit_bias=BIASED_TOKENS),
]


def repetitive(sampling, index=0, count=60):
    """A prompt that repeats a few tokens."""
    phrase = (11, 12, 13, 14, 12, 11, 14, 13)
    return Request(
        f"r{index}", (phrase * 9)[: 30 + 7 * index], count, replace(sampling, seed=50 + index)
    )


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_prompt_lookup_changes_no_token(engine, solo, collect, sampling):
    running = engine(PromptLookup(), max_draft=8)
    many = [repetitive(sampling, index) for index in range(4)]
    tickets = [running.submit(request) for request in many]
    accepted = 0
    for request, ticket in zip(many, tickets, strict=True):
        outcome = collect(ticket)
        assert outcome.tokens == solo(request).tokens
        usage = outcome.end.usage
        assert usage.drafted >= usage.accepted
        assert usage.steps == usage.emitted - 1 - usage.accepted
        accepted += usage.accepted
    assert accepted > 0
    assert running.stats()["draft_failures"] == 0


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("sampling", SAMPLINGS[5:], ids=str)
def test_drafted_rows_are_penalised_as_a_host_counts(
    engine, load, loaded, collect, prophet, sampling, graphs
):
    """Wrong drafts between right ones, in padded steps and in steps of their own size."""
    many = [repetitive(sampling, index) for index in range(4)]
    plain = engine(model=load(graphs=graphs))
    futures = [
        [*request.prompt, *collect(ticket).tokens]
        for request, ticket in [(request, plain.submit(request)) for request in many]
    ]
    running = engine(prophet(futures, wrong=4), model=load(graphs=graphs), max_draft=7)
    tickets = [running.submit(request) for request in many]
    for request, future, ticket in zip(many, futures, tickets, strict=True):
        outcome, prompt = collect(ticket), len(request.prompt)
        assert outcome.end.usage.accepted > 0
        assert [*request.prompt, *outcome.tokens] == future
        rows = [
            RowContext(
                request.sampling,
                position,
                frozenset(request.prompt),
                Counter(future[prompt:position]),
            )
            for position in range(prompt, len(future))
        ]
        logits = torch.cat(list(score.logits(loaded, future)))[prompt - 1 : -1]
        assert sample(logits, row_sampling(rows, logits.device)).tolist() == outcome.tokens
    if graphs == "on":
        assert running.stats()["eager_steps"] == 0


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_right_drafts_save_steps_and_wrong_ones_cost_nothing(
    engine, text, solo, collect, prophet, wrong
):
    """Ragged chains of seven drafts, every ``wrong``-th of them wrong."""
    many = [Request(f"r{i}", tuple(text[: 20 + 23 * i]), 41) for i in range(3)]
    futures = [[*request.prompt, *solo(request).tokens] for request in many]
    drafter = prophet(futures, wrong)
    running = engine(drafter, max_draft=7)
    tickets = [running.submit(request) for request in many]
    for request, ticket in zip(many, tickets, strict=True):
        outcome = collect(ticket)
        assert outcome.tokens == solo(request).tokens
        assert outcome.end.usage.steps == {0: 5, 1: 40, 2: 20, 3: 14}[wrong]
    assert drafter.released == 3


def test_drafts_and_plain_requests_share_steps(engine, text, solo, collect, prophet):
    drafted = Request("drafted", tuple(text[:50]), 40)
    plain = Request("plain", tuple(text[:50]), 40, draft=False)
    running = engine(prophet([[*drafted.prompt, *solo(drafted).tokens]]), max_draft=5)
    tickets = [running.submit(request) for request in (drafted, plain)]
    fast, slow = map(collect, tickets)
    assert fast.tokens == slow.tokens == solo(drafted).tokens
    assert slow.end.usage.drafted == 0
    assert slow.end.usage.steps == 39
    assert fast.end.usage.steps < 10


@pytest.mark.parametrize("place", range(1, 9))
def test_a_stop_token_inside_a_draft_ends_the_output(engine, text, solo, collect, prophet, place):
    request = Request("a", tuple(text[:40]), 20, keep=True)
    expected = solo(request).tokens
    stop = frozenset({expected[place]})
    running = engine(prophet([[*request.prompt, *expected]]), max_draft=6)
    outcome = collect(running.submit(replace(request, stop=stop)))
    assert outcome.tokens == expected[: place + 1]
    assert outcome.end.reason is FinishReason.STOP
    again = Request("b", (*request.prompt, *outcome.tokens, 9), 10)
    assert collect(running.submit(again)).tokens == solo(again).tokens


@pytest.mark.parametrize("count", [1, 2, 5, 7, 8, 9])
def test_no_more_is_emitted_than_was_asked_for(engine, text, solo, collect, prophet, count):
    longer = Request("a", tuple(text[:40]), 20)
    drafter = prophet([[*longer.prompt, *solo(longer).tokens]])
    outcome = collect(engine(drafter, max_draft=7).submit(replace(longer, max_new=count)))
    assert outcome.tokens == solo(longer).tokens[:count]
    assert outcome.end.reason is FinishReason.LENGTH


def test_a_drafter_that_fails_harms_nobody(engine, text, solo, collect):
    class Broken:
        def propose(self, known, limit):
            raise RuntimeError("no idea")

        def release(self, known):
            raise RuntimeError("never heard of it")

    request = Request("a", tuple(text[:40]), 6)
    running = engine(Broken(), max_draft=4)
    assert collect(running.submit(request)).tokens == solo(request).tokens
    assert running.stats()["draft_failures"] > 0


# -- log-probabilities ----------------------------------------------------------------------------

LOGPROB = 1e-3
"""2e-4 of the largest logit, about 5: rows computed in slices of other lengths round otherwise."""


@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1, top_k=50, seed=3)])
def test_logprobs_are_those_of_the_scored_text(
    engine, loaded, text, solo, collect, prophet, drafting, sampling
):
    request = Request("a", tuple(text[:45]), 24, replace(sampling, logprobs=4))
    future = [*request.prompt, *solo(request).tokens]
    drafter = prophet([future], wrong=4) if drafting else None
    outcome = collect(engine(drafter, max_draft=6).submit(request))
    assert outcome.tokens == solo(request).tokens
    assert (outcome.end.usage.accepted > 0) == drafting
    rows = torch.cat(list(score.logits(loaded, future)))[44:-1].log_softmax(1)
    assert len(outcome.logprobs) == len(rows) == 24
    for found, token, row in zip(outcome.logprobs, outcome.tokens, rows, strict=True):
        assert found.token == token
        assert abs(found.logprob - float(row[token])) < LOGPROB
        best = row.topk(4)
        assert [token for token, _ in found.top] == best.indices.tolist()
        chances = torch.tensor([logprob for _, logprob in found.top])
        torch.testing.assert_close(chances, best.values, rtol=0, atol=LOGPROB)


def test_logprobs_are_of_the_model_before_bias_and_temperature(engine, loaded, text, collect):
    sampling = Sampling(
        temperature=2, logit_bias=BIASED_TOKENS, repetition_penalty=1.5, logprobs=0, seed=1
    )
    request = Request("a", tuple(text[:45]), 5, sampling)
    outcome = collect(engine().submit(request))
    known = [*request.prompt, *outcome.tokens]
    rows = torch.cat(list(score.logits(loaded, known)))[44:-1].log_softmax(1)
    for found, token, row in zip(outcome.logprobs, outcome.tokens, rows, strict=True):
        assert found.top == ()
        assert abs(found.logprob - float(row[token])) < LOGPROB


def test_nothing_is_reported_that_was_not_asked_for(engine, text, collect):
    assert collect(engine().submit(Request("a", tuple(text[:9]), 3))).logprobs == []

"""Speculative output on a toy model with a table of logits: the plain path's tokens and chances.

The logits after a token depend on the last two tokens, so exact probabilities can be written down.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.gumbel import ranked
from kinfolk.spec.sampling import sample
from kinfolk.spec.verify import NO_ROW, REFERENCE_ACCEPT_DRAFTS, verify
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk.verify_api import Draft, VerifyStep

CPU = torch.device("cpu")
VOCABULARY = 6
PROMPT = (1, 4)

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.3, top_k=3),
    Sampling(temperature=1, min_p=0.2),
    Sampling(temperature=1, repetition_penalty=1.5),
    Sampling(temperature=1, presence_penalty=0.8, frequency_penalty=0.5),
    Sampling(temperature=1, logit_bias=((2, 1.5), (0, -1.0))),
    Sampling(repetition_penalty=1.4, frequency_penalty=0.3),
]


@pytest.fixture(scope="module")
def table():
    """float32 [V, V, V]: logits after two tokens."""
    generator = torch.Generator().manual_seed(3)
    return 1.2 * torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=generator)


def context(sampling, text):
    """The row context for sampling the token after ``text``."""
    return RowContext(sampling, len(text), frozenset(PROMPT), Counter(text[len(PROMPT) :]))


def plain(table, samplings, count):
    """``count`` tokens for each of several requests, one at a time."""
    texts = [list(PROMPT) for _ in samplings]
    for _ in range(count):
        logits = torch.stack([table[text[-2], text[-1]] for text in texts])
        rows = [context(s, text) for s, text in zip(samplings, texts, strict=True)]
        drawn = sample(logits, row_sampling(rows, CPU)).tolist()
        for text, token in zip(texts, drawn, strict=True):
            text.append(token)
    return [text[len(PROMPT) :] for text in texts]


def chain(_, size):
    return list(range(-1, size - 1))


def tree(rng, size):
    return [-1, *(int(rng.integers(0, row)) for row in range(1, size))]


def speculative(table, samplings, count, shape, rng, drafted):
    """The same with drafts: ``shape`` makes parents, ``drafted`` tokens a step at most."""
    texts = [list(PROMPT) for _ in samplings]
    # The first token comes from the prompt's last row, as it does after a prefill.
    for text, (first,) in zip(texts, plain(table, samplings, 1), strict=True):
        text.append(first)
    accepted = 0
    while any(len(text) < len(PROMPT) + count for text in texts):
        lanes = [i for i, text in enumerate(texts) if len(text) < len(PROMPT) + count]
        drafts = []
        for i in lanes:
            size = int(rng.integers(1, drafted + 2))
            guesses = rng.integers(0, VOCABULARY, size - 1).tolist()
            drafts.append(([texts[i][-1], *guesses], shape(rng, size)))
        kept = run(table, [samplings[i] for i in lanes], [texts[i] for i in lanes], drafts, count)
        for i, (tokens, _), path, following in zip(
            lanes, drafts, kept.path.tolist(), kept.next.tolist(), strict=True
        ):
            rows = [row for row in path if row >= 0]
            texts[i] += [*(tokens[row] for row in rows[1:]), following]
            accepted += len(rows) - 1
    return [text[len(PROMPT) :] for text in texts], accepted


def run(table, samplings, texts, drafts, count):
    """One verification step over all lanes."""
    logits, contexts, rows = [], [], []
    for sampling, text, (tokens, parents) in zip(samplings, texts, drafts, strict=True):
        known: list[list[int]] = []
        rows.append(list(range(len(logits), len(logits) + len(tokens))))
        for token, parent in zip(tokens, parents, strict=True):
            known.append([*(known[parent] if parent >= 0 else text[:-1]), token])
            logits.append(table[known[-1][-2], known[-1][-1]])
            contexts.append(context(sampling, known[-1]))
    width = max(map(len, rows))

    def padded(values, fill):
        return torch.tensor([[*row] + [fill] * (width - len(row)) for row in values])

    draft = Draft(
        padded([tokens for tokens, _ in drafts], 0),
        padded([parents for _, parents in drafts], NO_ROW),
        torch.tensor([len(PROMPT) + count - len(text) for text in texts]),
        REFERENCE_ACCEPT_DRAFTS,
    )
    step = VerifyStep(torch.stack(logits), padded(rows, -1))
    return verify(step, draft, row_sampling(contexts, CPU))


@pytest.mark.parametrize("shape", [chain, tree])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_drafts_change_no_token(table, rng, sampling, shape):
    samplings = [replace(sampling, seed=seed) for seed in range(20)]
    expected = plain(table, samplings, 24)
    found, accepted = speculative(table, samplings, 24, shape, rng, drafted=7)
    assert found == expected
    assert accepted > 0


@pytest.mark.parametrize(
    ("sampling", "shape"),
    [(Sampling(temperature=1), chain), (Sampling(temperature=0.8, top_k=4, top_p=0.9), tree)],
    ids=["chain", "filtered, tree"],
)
def test_three_tokens_have_the_joint_chances_of_the_model(
    table, rng, distribution, chance_of, sampling, shape
):
    n = 20_000
    samplings = [replace(sampling, seed=seed) for seed in range(n)]
    found, accepted = speculative(table, samplings, 3, shape, rng, drafted=3)
    assert accepted > n / 20
    places = np.array(found) @ [VOCABULARY**2, VOCABULARY, 1]
    counts = np.bincount(places, minlength=VOCABULARY**3)
    assert chance_of(counts, joint(table, distribution, sampling)) > 1e-3


@pytest.mark.parametrize("parents", [(-1, 0, 1), (-1, 0, 0, 1, 2)], ids=["chain", "siblings"])
def test_proposals_ranked_with_the_noise_of_the_draw_leave_its_joint_chances(
    table, distribution, chance_of, parents
):
    """Proposals and draws share their noise, so a draft says something of what is drawn. Drafts of
    a distribution that is off; siblings are its first and second choice."""
    n, off = 20_000, 0.7 * torch.randn(table.shape, generator=torch.Generator().manual_seed(5))
    sampling = Sampling(temperature=1)
    samplings = [replace(sampling, seed=seed) for seed in range(n)]
    firsts = [first for (first,) in plain(table, samplings, 1)]
    texts = [[*PROMPT, first] for first in firsts]
    proposals = ranked_drafts(table + off, texts, parents)
    drafts = [(tokens, list(parents)) for tokens in proposals.tolist()]
    kept = run(table, samplings, texts, drafts, 3)
    accepted = kept.n_keep - 1
    for text, (tokens, _), path, following in zip(
        texts, drafts, kept.path.tolist(), kept.next.tolist(), strict=True
    ):
        text += [*(tokens[row] for row in path[1:] if row >= 0), following]
    # One token is missing where the first draft was wrong.
    short = [i for i, text in enumerate(texts) if len(text) == len(PROMPT) + 2]
    for i, tokens in zip(short, plain(table, [samplings[i] for i in short], 3), strict=True):
        assert texts[i][len(PROMPT) :] == tokens[:2]
        texts[i] = [*PROMPT, *tokens]
    found = np.array(texts)[:, len(PROMPT) : len(PROMPT) + 3] @ [VOCABULARY**2, VOCABULARY, 1]
    counts = np.bincount(found, minlength=VOCABULARY**3)
    assert chance_of(counts, joint(table, distribution, sampling)) > 1e-3
    assert float((accepted > 0).double().mean()) > 0.6


def ranked_drafts(scores, texts, parents):
    """Tokens [L, N] of drafts in the shape of ``parents``, from logits of a drafter [V, V, V]; row
    0 is the pending token."""
    lanes, seeds = len(texts), torch.arange(len(texts))
    everything = torch.arange(VOCABULARY).expand(lanes, -1)
    before = [torch.tensor([text[-2] for text in texts])]
    tokens, depth = [torch.tensor([text[-1] for text in texts])], [0]
    for row, parent in enumerate(parents[1:], 1):
        log_q = scores[before[parent], tokens[parent]].log_softmax(1)
        position = torch.tensor(len(texts[0]) + depth[parent])
        choices = ranked(log_q, everything, seeds, position, torch.ones(lanes)).tokens
        tokens.append(choices[:, parents[1:row].count(parent)])
        before.append(tokens[parent])
        depth.append(depth[parent] + 1)
    return torch.stack(tokens, 1)


def joint(table, distribution, sampling):
    """Chance of every three tokens after the prompt."""
    next_of = {
        pair: distribution(table[pair].double().numpy(), sampling)
        for pair in itertools.product(range(VOCABULARY), repeat=2)
    }
    chances = np.zeros((VOCABULARY,) * 3)
    for a, b, c in itertools.product(range(VOCABULARY), repeat=3):
        chances[a, b, c] = (
            next_of[PROMPT].get(a, 0) * next_of[PROMPT[1], a].get(b, 0) * next_of[a, b].get(c, 0)
        )
    return chances


def test_a_draft_is_accepted_as_often_as_the_model_would_say_it(table, distribution):
    sampling, n, guess = Sampling(temperature=1), 20_000, 2
    samplings = [replace(sampling, seed=seed) for seed in range(n)]
    text = [*PROMPT, 5]
    kept = run(table, samplings, [text] * n, [([5, guess], [-1, 0])] * n, 10)
    chance = distribution(table[PROMPT[1], 5].double().numpy(), sampling)[guess]
    rate = float((kept.n_keep == 2).double().mean())
    assert abs(rate - chance) < 3 * (chance * (1 - chance) / n) ** 0.5


def test_a_perfect_drafter_needs_few_steps_and_a_bad_one_loses_nothing(table):
    sampling = Sampling(temperature=1, seed=8)
    (expected,) = plain(table, [sampling], 9)
    text = [*PROMPT, expected[0]]
    good = run(table, [sampling], [text], [(expected[:8], chain(None, 8))], 99)
    assert (good.n_keep.tolist(), good.next.tolist()) == ([8], [expected[8]])
    wrong = [(token + 1) % VOCABULARY for token in expected[1:8]]
    bad = run(table, [sampling], [text], [([expected[0], *wrong], chain(None, 8))], 99)
    assert (bad.n_keep.tolist(), bad.next.tolist()) == ([1], [expected[1]])

"""Sampling against its definition, token by token in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.sampling import sample
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk_kernels.sample.op import argmax, candidates
from kinfolk_kernels.sample.philox import KEY_STEPS, LOW, MULTIPLIERS

CPU = torch.device("cpu")
VOCABULARY = 40


def sampling_of(rows):
    return row_sampling(rows, CPU)


def random_rows(rng, n):
    """Logits with many ties, and parameters of every kind."""
    logits = np.round(rng.normal(0, 3, (n, VOCABULARY)) * 2) / 2
    rows = []
    for _ in range(n):
        sampling = Sampling(
            temperature=float(rng.choice([0, 0.3, 0.7, 1, 2.5])),
            top_k=int(rng.choice([0, 1, 3, 10, 39, 40, 100])),
            top_p=float(rng.choice([1, rng.uniform(0.01, 1)])),
            min_p=float(rng.choice([0, rng.uniform(0, 0.6)])),
            repetition_penalty=float(rng.choice([1, 1.3, 0.8])),
            presence_penalty=float(rng.choice([0, 0.7, -0.4])),
            frequency_penalty=float(rng.choice([0, 0.35, -0.2])),
            logit_bias=tuple(
                (int(token), float(rng.normal(0, 4)))
                for token in rng.choice(VOCABULARY, rng.integers(0, 4), replace=False)
            ),
            seed=int(rng.integers(0, 2**63)),
        )
        prompt = frozenset(rng.choice(VOCABULARY, 6).tolist())
        output = {int(t): int(rng.integers(1, 4)) for t in rng.choice(VOCABULARY, 5)}
        rows.append(RowContext(sampling, int(rng.integers(0, 5000)), prompt, output))
    return torch.tensor(logits, dtype=torch.float32), rows


def noise_of(seed, position, token):
    """Gumbel noise of one token, in integers of Python."""
    counter, key = [position & LOW, position >> 32, token // 2, 0], [seed & LOW, seed >> 32]
    for _ in range(10):
        first, second = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & LOW,
            (first >> 32) ^ counter[3] ^ key[1],
            first & LOW,
        ]
        key = [(word + step) & LOW for word, step in zip(key, KEY_STEPS, strict=True)]
    high, low = counter[2 * (token % 2) :][:2]
    return -math.log(-math.log(max((high << 32 | low) >> 11, 0.5) / 2**53))


@pytest.mark.parametrize("case", range(8))
def test_every_draw_has_the_largest_sum_of_log_probability_and_noise(distribution, case):
    rng = np.random.default_rng(case)
    logits, rows = random_rows(rng, 60)
    found = sample(logits, sampling_of(rows)).tolist()
    for row, token, scores in zip(rows, found, logits.double().numpy(), strict=True):
        keys = {
            candidate: math.log(chance) + noise_of(row.sampling.seed, row.position, candidate)
            for candidate, chance in distribution(
                scores, row.sampling, row.prompt, row.output
            ).items()
        }
        assert token == max(keys, key=keys.get)


@pytest.mark.parametrize("case", range(4))
def test_company_does_not_change_a_draw(case):
    logits, rows = random_rows(np.random.default_rng(100 + case), 30)
    together = sample(logits, sampling_of(rows)).tolist()
    alone = [int(sample(logits[i : i + 1], sampling_of([row]))[0]) for i, row in enumerate(rows)]
    assert together == alone


# -- filters one by one ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1),
        Sampling(temperature=0.2),
        Sampling(temperature=3),
        Sampling(temperature=1, top_k=7),
        Sampling(temperature=1, top_k=1),
        Sampling(temperature=1, top_p=0.6),
        Sampling(temperature=1, top_p=1e-6),
        Sampling(temperature=1, min_p=0.2),
        Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05),
    ],
    ids=str,
)
def test_what_a_filter_leaves_has_the_right_chances(rng, distribution, sampling):
    logits = torch.tensor(rng.normal(0, 2, (1, VOCABULARY)), dtype=torch.float32)
    p, tokens = candidates(logits, sampling_of([RowContext(sampling, 0)]))
    exact = distribution(logits[0].double().numpy(), sampling)
    kept = (p[0] > 0).sum()
    assert tokens[0, :kept].tolist() == list(exact)
    normalised = p[0, :kept] / p[0, :kept].sum()
    np.testing.assert_allclose(normalised.numpy(), list(exact.values()), rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"top_k": 5},
        {"top_p": 0.5},
        {"min_p": 0.3},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.0},
        {"logit_bias": ((3, 5.0),)},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_field_changes_something(rng, change):
    logits = torch.tensor(rng.normal(0, 2, (200, VOCABULARY)), dtype=torch.float32)
    plain = Sampling(temperature=1)
    prompt, output = frozenset(range(20)), {1: 1, 30: 3}

    def draw(sampling):
        return sample(
            logits, sampling_of([RowContext(sampling, i, prompt, output) for i in range(200)])
        )

    assert not torch.equal(draw(plain), draw(replace(plain, **change)))


# -- ties and extremes ----------------------------------------------------------------------------


def test_the_lowest_of_equal_ids_is_the_most_probable():
    logits = torch.zeros(3, 300)
    logits[1, [250, 7]] = 1
    logits[2, 299] = 1
    assert argmax(logits).tolist() == [0, 7, 299]
    greedy = sampling_of([RowContext(Sampling(), 0)] * 3)
    assert sample(logits, greedy).tolist() == [0, 7, 299]


@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_top_k_keeps_the_lowest_of_equal_ids(count):
    logits = torch.zeros(2, 3000)
    logits[1, [2000, 1000]] = 1
    rows = sampling_of([RowContext(Sampling(temperature=1, top_k=count), 0)] * 2)
    p, tokens = candidates(logits, rows)
    assert tokens[0, :count].tolist() == list(range(count))
    assert tokens[1, :count].tolist() == [1000, 2000, *range(count)][:count]
    assert (p > 0).sum(1).tolist() == [count, count]


@pytest.mark.parametrize("temperature", [1e-5, 1e-12, 1e-38])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = torch.tensor([[5.0, 90, -3e4, 89.5]])
    rows = sampling_of([RowContext(Sampling(temperature=temperature, seed=3), 9)])
    assert sample(logits, rows).tolist() == [1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("top_k", [0, 4])
def test_rows_that_are_not_finite_spoil_no_other(rng, bad, top_k):
    logits = torch.tensor(rng.normal(0, 2, (3, VOCABULARY)), dtype=torch.float32)
    rows = sampling_of([RowContext(Sampling(temperature=1, top_k=top_k), i) for i in range(3)])
    expected = sample(logits, rows)
    spoiled = logits.clone()
    spoiled[1] = bad
    found = sample(spoiled, rows)
    assert found[[0, 2]].tolist() == expected[[0, 2]].tolist()
    assert 0 <= int(found[1]) < VOCABULARY


def test_a_banned_token_is_never_drawn():
    ban = Sampling(temperature=5, logit_bias=((2, -torch.inf),))
    rows = sampling_of([RowContext(ban, position) for position in range(2000)])
    drawn = sample(torch.zeros(2000, 4), rows)
    assert drawn.unique().tolist() == [0, 1, 3]


def test_logits_are_left_as_they_were():
    logits = torch.randn(2, 9)
    before = logits.clone()
    row = RowContext(Sampling(repetition_penalty=2, logit_bias=((1, 3.0),)), 0, frozenset({4}))
    sample(logits, sampling_of([row, row]))
    assert torch.equal(logits, before)


# -- penalties ------------------------------------------------------------------------------------


def greedy_after(logits, sampling, prompt=(), output=None):
    row = RowContext(sampling, 0, frozenset(prompt), output)
    return int(sample(torch.tensor([logits]), sampling_of([row]))[0])


def test_repetition_counts_the_prompt_and_the_output():
    penalty = Sampling(repetition_penalty=2)
    assert greedy_after([3.0, 2.0], penalty) == 0
    assert greedy_after([3.0, 2.0], penalty, prompt=[0]) == 1
    assert greedy_after([3.0, 2.0], penalty, output={0: 1}) == 1
    assert greedy_after([-1.0, -1.5], penalty, prompt=[0]) == 1, "negative ones are multiplied"


def test_presence_and_frequency_count_the_output_only():
    for penalty in (Sampling(presence_penalty=1.5), Sampling(frequency_penalty=1.5)):
        assert greedy_after([3.0, 2.0], penalty, prompt=[0]) == 0
        assert greedy_after([3.0, 2.0], penalty, output={0: 1}) == 1
    assert greedy_after([3.0, 2.0], Sampling(presence_penalty=0.6), output={0: 5}) == 0
    assert greedy_after([3.0, 2.0], Sampling(frequency_penalty=0.6), output={0: 5}) == 1


def test_bias_comes_after_the_penalties():
    """(4 / 2) + 1 = 3 beats 2.9; (4 + 1) / 2 = 2.5 would not."""
    both = Sampling(repetition_penalty=2, logit_bias=((0, 1.0),))
    assert greedy_after([4.0, 2.9], both, prompt=[0]) == 0


# -- distribution ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1),
        Sampling(temperature=0.5, top_p=0.9),
        Sampling(temperature=1.5, top_k=6),
        Sampling(temperature=1, min_p=0.1, repetition_penalty=1.4, presence_penalty=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("axis", ["positions", "seeds"])
def test_draws_follow_the_filtered_softmax(rng, distribution, chance_of, sampling, axis):
    logits = rng.normal(0, 1.5, 12).astype(np.float32)
    prompt, output = frozenset({1, 2}), {2: 1, 5: 2}
    n = 20_000
    rows = [
        RowContext(replace(sampling, seed=i), 77, prompt, output)
        if axis == "seeds"
        else RowContext(replace(sampling, seed=4), i, prompt, output)
        for i in range(n)
    ]
    drawn = sample(torch.from_numpy(logits).expand(n, -1), sampling_of(rows))
    exact = distribution(logits.astype(np.float64), sampling, prompt, output)
    probabilities = [exact.get(token, 0.0) for token in range(12)]
    assert chance_of(np.bincount(drawn.numpy(), minlength=12), probabilities) > 1e-3


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(temperature=1), marks=pytest.mark.long),
        Sampling(temperature=0.8, top_k=40, top_p=0.95),
    ],
    ids=str,
)
def test_three_tokens_in_a_row_follow_their_joint_law(rng, distribution, chance_of, sampling):
    """A chain over 2000 tokens, whose logits depend on the token before modulo 5. Cells are the
    likeliest tokens one by one, and the others by the logits that they lead to."""
    vocabulary, states, likely, n = 2000, 5, 6, 20_000
    table = rng.normal(0, 3, (states, vocabulary)).astype(np.float32)
    chances = np.zeros((states, vocabulary))
    for state in range(states):
        exact = distribution(table[state].astype(np.float64), sampling)
        chances[state, list(exact)] = list(exact.values())
    token = np.arange(vocabulary)
    label = likely + token % states
    label[np.argsort(-chances.sum(0))[:likely]] = np.arange(likely)
    labels = likely + states
    step = np.zeros((states, labels, states))
    np.add.at(step, (slice(None), label, token % states), chances)
    joint = np.einsum("pb,bqc,cr->pqr", step[0], step, step.sum(2))

    logits = torch.from_numpy(table)
    chains = []
    for start in range(0, n, 2000):
        before, chain = torch.zeros(2000, dtype=torch.int64), []
        for position in (41, 42, 43):
            rows = [
                RowContext(replace(sampling, seed=seed), position)
                for seed in range(start, start + 2000)
            ]
            before = sample(logits[before % states], sampling_of(rows))
            chain.append(torch.from_numpy(label)[before])
        chains.append(torch.stack(chain))
    first, second, third = torch.cat(chains, 1).numpy()
    counts = np.bincount((first * labels + second) * labels + third, minlength=labels**3)
    assert chance_of(counts, joint.ravel()) > 1e-3


def test_positions_and_seeds_draw_independently(rng):
    """Neighbours agree as often as two independent draws do."""
    logits = torch.tensor(rng.normal(0, 1, 50), dtype=torch.float32)
    same = float(logits.double().softmax(0).square().sum())
    n = 20_000
    for rows in (
        [RowContext(Sampling(temperature=1, seed=8), i) for i in range(n)],
        [RowContext(Sampling(temperature=1, seed=i), 8) for i in range(n)],
    ):
        drawn = sample(logits.expand(n, -1), sampling_of(rows))
        agree = (drawn[::2] == drawn[1::2]).double().mean().item()
        assert abs(agree - same) < 4 * (same * (1 - same) / (n / 2)) ** 0.5

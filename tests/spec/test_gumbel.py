"""Proposals ranked with the noise of the target's draw: how often they are what the target draws,
against the exact chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.gumbel import ranked
from kinfolk.spec.sampling import sample
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk_kernels.sample.philox import gumbel

CPU = torch.device("cpu")
ROWS, VOCABULARY = 2000, 2000
TARGET, OFF = 6.5, 0.7
"""Deviation of the target's logits, and of the drafter's from them."""


@dataclass(frozen=True)
class Toy:
    """Logits of targets and of drafters [ROWS, VOCABULARY]; what the target draws at temperature 1,
    and the drafter's proposals, the most probable first and ranked."""

    logits: torch.Tensor
    log_q: torch.Tensor
    drawn: torch.Tensor
    likeliest: torch.Tensor
    ranked: torch.Tensor


@pytest.fixture(scope="module")
def toy():
    generator = torch.Generator().manual_seed(18)
    logits = TARGET * torch.randn(ROWS, VOCABULARY, generator=generator)
    log_q = (logits + OFF * torch.randn(ROWS, VOCABULARY, generator=generator)).log_softmax(1)
    rows = [RowContext(Sampling(temperature=1, seed=i // 50), 100 + i % 50) for i in range(ROWS)]
    sampling = row_sampling(rows, CPU)
    drawn = sample(logits, sampling)
    likeliest = log_q.topk(64, 1)
    order = ranked(
        likeliest.values,
        likeliest.indices,
        sampling.seed,
        sampling.position,
        sampling.temperature,
    )
    return Toy(logits, log_q, drawn, likeliest.indices, order.tokens)


def exact_chances(logits, log_q):
    """The chances that the target's draw is the first of the ranked proposals, and that it is one
    of the first two.

    Gumbel-max is a race: token j arrives at e_j / p_j, with e_j of an exponential distribution. So
    i wins both races if e_j >= e_i m_j for all j, m_j = max(p_j / p_i, q_j / q_i): the chance is
    1 / sum(m). It wins that of p and is second to k alone in that of q if p_k / p_i < e_k / e_i <
    q_k / q_i; the chance is the difference of two such.
    """
    first, second = 0.0, 0.0
    p, q = torch.softmax(logits, 0).numpy(), log_q.exp().numpy()
    for token in np.flatnonzero(p > 1e-6):
        alone = p / p[token]
        both = np.maximum(alone, q / q[token])
        first += 1 / both.sum()
        second += (1 / (both.sum() - both + alone) - 1 / both.sum()).sum()
    return first, first + second


def assert_agree(kept, chances):
    """A rate within three deviations of the mean of its chances."""
    deviation = (chances * (1 - chances)).sum().sqrt() / len(chances)
    assert abs(kept.double().mean() - chances.mean()) < 3 * deviation


def test_ranked_proposals_are_drawn_with_the_exact_chance(toy):
    """One proposal 0.81, two siblings 0.95."""
    both = torch.tensor(
        [exact_chances(*each) for each in zip(toy.logits.double(), toy.log_q.double(), strict=True)]
    )
    hits = toy.ranked == toy.drawn[:, None]
    assert_agree(hits[:, 0], both[:, 0])
    assert_agree(hits[:, :2].any(1), both[:, 1])
    assert both.mean(0).tolist() == pytest.approx([0.81, 0.95], abs=0.02)


def test_the_most_probable_proposals_are_drawn_less_often(toy):
    """With the chances that the target gives them: 0.59, and 0.75 for two siblings."""
    p = toy.logits.double().softmax(1).gather(1, toy.likeliest[:, :2])
    hits = toy.likeliest == toy.drawn[:, None]
    assert_agree(hits[:, 0], p[:, 0])
    assert_agree(hits[:, :2].any(1), p.sum(1))
    assert [p[:, 0].mean(), p.sum(1).mean()] == pytest.approx([0.59, 0.75], abs=0.03)


def test_the_first_proposal_is_a_draw_of_the_drafter(rng, chance_of):
    log_q = torch.tensor(rng.normal(0, 1.5, 12)).log_softmax(0)
    n = 20_000
    temperature = torch.full((n,), 0.7)
    tokens = torch.arange(12).expand(n, -1)
    found = ranked(log_q.expand(n, -1), tokens, torch.arange(n), torch.tensor(9), temperature)
    expected = (log_q / 0.7).softmax(0)
    assert chance_of(np.bincount(found.tokens[:, 0], minlength=12), expected.numpy()) > 1e-3


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
def test_a_drafter_that_is_right_proposes_what_the_target_draws(rng, temperature):
    """The draw, too, adds noise to the logits; a constant of a row changes nothing."""
    logits = torch.tensor(rng.normal(0, 2, (200, 90)), dtype=torch.float32)
    sampling = row_sampling(
        [RowContext(Sampling(temperature=temperature, seed=3), i) for i in range(200)], CPU
    )
    tokens = torch.stack([torch.randperm(90) for _ in range(200)])
    found = ranked(
        logits.log_softmax(1).gather(1, tokens),
        tokens,
        sampling.seed,
        sampling.position,
        sampling.temperature,
    )
    assert torch.equal(found.tokens[:, 0], sample(logits, sampling))


def test_every_shape_is_ranked_row_by_row(rng):
    """[L, D, K] with seeds and temperatures of sequences, positions of rows."""
    shape = (3, 4, 7)
    log_q = torch.tensor(rng.normal(0, 1, shape)).log_softmax(-1)
    tokens = torch.stack([torch.randperm(500)[:7] for _ in range(12)]).view(shape)
    seed, temperature = torch.tensor([5, -1, 2**40])[:, None], torch.tensor([[0.0], [0.7], [1.5]])
    position = torch.arange(12).view(3, 4) + 1000
    found = ranked(log_q, tokens, seed, position, temperature)
    for i, j in np.ndindex(3, 4):
        t = temperature[i, 0].double()
        noise = gumbel(seed[i], position[i, j], tokens[i, j])
        keys = log_q[i, j] / t + noise if t > 0 else log_q[i, j]
        order = keys.argsort(descending=True)
        assert torch.equal(found.tokens[i, j], tokens[i, j, order])
        assert torch.equal(found.log_q[i, j], log_q[i, j, order])
        assert torch.equal(found.keys[i, j], keys[order])


def test_the_lowest_of_equal_ids_is_first_and_excluded_tokens_are_last():
    log_q = torch.tensor([[-1.0, -torch.inf, -1.0, -0.5]])
    tokens = torch.tensor([[9, 1, 4, 7]])
    zero = torch.zeros(1, dtype=torch.int64)
    assert ranked(log_q, tokens, zero, zero, torch.zeros(1)).tokens.tolist() == [[7, 4, 9, 1]]
    warm = ranked(log_q, tokens, zero, zero, torch.ones(1))
    assert warm.tokens[0, -1] == 1
    assert warm.log_q[0, -1] == -torch.inf

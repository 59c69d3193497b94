"""Proposals for sampled requests: ranked by the noise with which the target draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dflash_bench import SHAPES, Bench, TableTarget, random_features, write_drafter
from dflash_reference import Reference, Shape, random_tensors

from kinfolk.sched.request import Sampling
from kinfolk.spec.sampling import sample
from kinfolk.testing.row_sampling import RowContext, row_sampling

SMALL = Shape(vocabulary=60, mask=59, block=16)
"""All of its vocabulary is ranked."""


@pytest.fixture
def lane(tmp_path):
    """``lane(shape)``: bench, reference and lease with some context."""

    def make(shape):
        tensors, target = random_tensors(shape), TableTarget(shape)
        bench = Bench(write_drafter(tmp_path / "draft.gguf", shape, tensors), target, shape)
        reference = Reference(shape, tensors, target.table, target.head)
        lease, features = bench.open(), random_features(shape, 21)
        bench.extend({lease: features})
        reference.extend(features)
        return bench, reference, lease

    return make


def draft(bench, lease, anchor, seed, temperature):
    block = bench.block({lease: anchor})
    block = replace(block, seed=torch.tensor([seed]), temperature=torch.tensor([temperature]))
    with torch.inference_mode():
        return bench.drafter.draft(block, bench.state)


def drawn(logits, start, seed, temperature):
    """What a target with these logits [D, V] draws behind the position ``start``."""
    sampling = Sampling(temperature=temperature, seed=seed)
    rows = [RowContext(sampling, start + 1 + row) for row in range(len(logits))]
    return sample(logits, row_sampling(rows, torch.device("cpu")))


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0, 1.7])
def test_the_first_proposals_are_what_a_target_of_these_logits_draws(lane, temperature):
    bench, reference, lease = lane(SMALL)
    for seed in range(8):
        proposals = draft(bench, lease, 5, seed, temperature)
        expected = drawn(reference.logits(5), 21, seed, temperature)
        assert torch.equal(proposals.tokens[0, :, 0], expected)


def test_the_selector_walks_along_what_would_be_drawn(lane):
    bench, reference, lease = lane(SHAPES["convolutions and selector"])
    reference.hidden(5)
    paths = {
        tuple(draft(bench, lease, 5, seed, 1.5).tokens[0, :, 0].tolist()) for seed in range(12)
    }
    greedy = tuple(row[0] for row in reference.walk(5)[0])
    assert len(paths) > 6
    assert tuple(draft(bench, lease, 5, 3, 0.0).tokens[0, :, 0].tolist()) == greedy


def test_scores_of_sampled_proposals_fall_and_are_log_probabilities(lane):
    bench, _, lease = lane(SMALL)
    proposals = draft(bench, lease, 5, 2, 1.0)
    assert bool((proposals.scores.diff(dim=-1) <= 0).all())
    assert bool((proposals.scores.exp().sum(-1) <= 1 + 1e-6).all())


def test_lanes_have_seeds_and_temperatures_of_their_own(lane):
    bench, reference, lease = lane(SMALL)
    other = bench.open()
    bench.extend({other: random_features(SMALL, 21)})
    block = bench.block({lease: 5, other: 5})
    block = replace(block, seed=torch.tensor([1, 2]), temperature=torch.tensor([1.0, 0.0]))
    with torch.inference_mode():
        tokens = bench.drafter.draft(block, bench.state).tokens[..., 0]
    logits = reference.logits(5)
    assert torch.equal(tokens[0], drawn(logits, 21, 1, 1.0))
    assert torch.equal(tokens[1], logits.argmax(-1))

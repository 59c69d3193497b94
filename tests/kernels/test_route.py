"""Which experts a row goes to, against sorting and dividing written out in plain Python."""

from __future__ import annotations

import math
import random

import pytest
import torch

from kinfolk_kernels.route import op as reference
from kinfolk_kernels.route import torch_backend as fast
from kinfolk_kernels.route.op import RouteArguments
from kinfolk_kernels.route.op import choice as choice_by

WEIGHT = 1e-6
"""Relative: one exponential, one sum and one quotient in float32."""


def arguments(weight, score, top_k, bias=None, scale=1.0, expert_scale=None):
    return RouteArguments(weight, score, top_k, torch.float32, bias, scale, expert_scale)


def choice(logits, *rest):
    """The choice by logits: no matrix is read."""
    return choice_by(arguments(None, *rest), logits)


def by_hand(logits, score, top_k, bias, scale, expert_scale):
    if score == "softmax":
        total = sum(math.exp(x - max(logits)) for x in logits)
        scores = [math.exp(x - max(logits)) / total for x in logits]
    else:
        scores = [1 / (1 + math.exp(-x)) for x in logits]
    ranked = sorted(range(len(logits)), key=lambda e: (-(scores[e] + bias[e]), e))[:top_k]
    total = sum(scores[e] for e in ranked)
    return ranked, [scores[e] / total * scale * expert_scale[e] for e in ranked]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (8, 2), (65, 7), (128, 8), (5, 5)])
@pytest.mark.parametrize("extras", [False, True])
def test_equals_the_definition(score, experts, top_k, extras):
    rng = random.Random(experts)
    rows = [[rng.gauss(0, 3) for _ in range(experts)] for _ in range(9)]
    bias = [rng.gauss(0, 0.3) if extras else 0.0 for _ in range(experts)]
    expert_scale = [rng.uniform(0.5, 2) if extras else 1.0 for _ in range(experts)]
    scale = 2.5 if extras else 1.0
    ids, weights = choice(
        torch.tensor(rows),
        score,
        top_k,
        torch.tensor(bias) if extras else None,
        scale,
        torch.tensor(expert_scale) if extras else None,
    )
    for row, logits in enumerate(rows):
        wanted, shares = by_hand(logits, score, top_k, bias, scale, expert_scale)
        assert ids[row].tolist() == wanted
        assert weights[row].tolist() == pytest.approx(shares, rel=WEIGHT)


def test_worked_example():
    """The softmax of the two chosen logits, 2 and 1."""
    ids, weights = choice(torch.tensor([[2.0, 1, 0, -1]]), "softmax", 2)
    assert ids.tolist() == [[0, 1]]
    assert weights[0].tolist() == pytest.approx([0.7310586, 0.2689414], rel=1e-6)


def test_of_equal_experts_the_lowest_ids_are_chosen():
    logits = torch.zeros(1, 200)
    logits[0, 150] = 1
    ids, _ = choice(logits, "softmax", 4)
    assert ids.tolist() == [[150, 0, 1, 2]]


def test_the_bias_chooses_and_does_not_weigh():
    logits, bias = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.0, 0.0, 9.0])
    ids, weights = choice(logits, "sigmoid", 1, bias)
    assert (ids.tolist(), weights.tolist()) == ([[2]], [[1.0]])


def test_rows_do_not_see_each_other():
    logits = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    ids, weights = choice(logits, "softmax", 3)
    for row in range(6):
        one_id, one_weight = choice(logits[row : row + 1], "softmax", 3)
        assert torch.equal(one_id[0], ids[row])
        assert torch.equal(one_weight[0], weights[row])


@pytest.mark.parametrize("route", [reference.route, fast.route], ids=["ref", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_multiplied_in_float32(route, dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 96, generator=generator).to(dtype)
    weight = torch.randn(20, 96, generator=generator)
    ids, weights = route(arguments(weight, "softmax", 4), x)
    wanted, shares = choice((x.double() @ weight.double().T).float(), "softmax", 4)
    assert torch.equal(ids, wanted)
    torch.testing.assert_close(weights, shares, rtol=1e-4, atol=0)

"""Sampling, accepted drafts and packed outputs on the GPU, over vocabularies of released models:
every token is one that its random number points at, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kinfolk_kernels.accept_drafts import triton_backend as accept_drafts_kernel
from kinfolk_kernels.accept_drafts.op import AcceptDraftsArguments, accept_drafts
from kinfolk_kernels.pack_outputs import triton_backend as pack_outputs_kernel
from kinfolk_kernels.pack_outputs.op import PackOutputsArguments, pack_outputs
from kinfolk_kernels.sample import triton_backend as kernel
from kinfolk_kernels.sample.op import SampleArguments, argmax, candidates, sample
from kinfolk_kernels.sample.philox import uniforms

SAMPLE_ON_GPU = SampleArguments(torch.device("cuda"))
PACK_ON_GPU = PackOutputsArguments(torch.device("cuda"))
ACCEPT_ON_GPU = AcceptDraftsArguments(torch.device("cuda"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MASS = 2e-6
"""How far a draw's mass may be off: exponentials in float32, and sums of up to 262144 of them."""


@dataclass(frozen=True)
class Rows:
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    greedy: bool = False
    largest_top_k: int = 0


def every_kind(rng, n, vocabulary):
    number = {"dtype": torch.float32, "device": "cuda"}
    return Rows(
        torch.tensor(rng.choice([0, 0.3, 0.8, 1, 2.5], n), **number),
        torch.tensor(rng.choice([0, 0, 1, 40, vocabulary // 2, 10 * vocabulary], n)).cuda(),
        torch.tensor(np.where(rng.random(n) < 0.3, 1, rng.uniform(0.01, 1, n)), **number),
        torch.tensor(np.where(rng.random(n) < 0.5, 0, rng.uniform(0, 0.6, n)), **number),
        torch.tensor(rng.integers(-(2**63), 2**63 - 1, n)).cuda(),
        torch.tensor(rng.integers(0, 5000, n)).cuda(),
    )


def random_logits(rng, n, vocabulary, grain=0.0):
    logits = rng.normal(0, 2, (n, vocabulary))
    logits = np.round(logits / grain) * grain if grain else logits
    return torch.tensor(logits, dtype=torch.float32, device="cuda")


def assert_pointed_at(tokens, logits, rows):
    """The random number lies between the masses of the candidates before a token and with it."""
    p, order = candidates(logits, rows)
    share = p.double() / p.double().sum(1, keepdim=True)
    place = (order == tokens[:, None]).long().argmax(1, keepdim=True)
    through = share.cumsum(1).gather(1, place)[:, 0]
    before = through - share.gather(1, place)[:, 0]
    number = uniforms(rows.seed, rows.position)
    drawn = rows.temperature > 0
    assert ((before - MASS <= number) & (number <= through + MASS))[drawn].all()
    assert torch.equal(tokens[~drawn], argmax(logits)[~drawn])


@pytest.mark.parametrize("vocabulary", [151936, 248320, 262144, 100352, 32007])
@pytest.mark.parametrize("n", [1, 3, 16, 64])
def test_every_kind_of_row(poisoned, vocabulary, n):
    rng = np.random.default_rng(vocabulary + n)
    logits, rows = random_logits(rng, n, vocabulary), every_kind(rng, n, vocabulary)
    with poisoned():
        tokens, finite = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert finite.all()
    assert_pointed_at(tokens, logits, rows)


@pytest.mark.parametrize("grain", [0.0625, 100.0], ids=["ties", "all equal"])
def test_ties(poisoned, grain):
    rng = np.random.default_rng(5)
    logits, rows = random_logits(rng, 4, 40_009, grain), every_kind(rng, 4, 40_009)
    with poisoned():
        tokens, _ = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert_pointed_at(tokens, logits, rows)


@pytest.mark.parametrize("n", [1, 16])
def test_greedy_rows(poisoned, n):
    rng = np.random.default_rng(n)
    logits = random_logits(rng, n, 248320, 0.25)
    rows = Rows(*([torch.zeros(n, device="cuda")] * 6), greedy=True)
    with poisoned():
        tokens, finite = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert torch.equal(tokens, argmax(logits))
    assert finite.all()


def test_company_and_repetition_change_no_draw():
    rng = np.random.default_rng(9)
    logits, rows = random_logits(rng, 16, 248320), every_kind(rng, 16, 248320)
    first, _ = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    for _ in range(5):
        assert torch.equal(kernel.sample(SAMPLE_ON_GPU, logits, rows)[0], first)
    columns = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
    for i in range(16):
        alone = Rows(*(getattr(rows, name)[i : i + 1] for name in columns))
        assert torch.equal(
            kernel.sample(SAMPLE_ON_GPU, logits[i : i + 1], alone)[0], first[i : i + 1]
        )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_spoil_no_other(bad):
    rng = np.random.default_rng(11)
    logits, rows = random_logits(rng, 4, 50_001), every_kind(rng, 4, 50_001)
    expected, _ = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    logits[1], logits[2, 40_000] = bad, bad
    tokens, finite = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert finite.tolist() == [True, False, False, True]
    assert tokens[[0, 3]].tolist() == expected[[0, 3]].tolist()
    assert ((tokens >= 0) & (tokens < 50_001)).all()


def test_the_reference_draws_the_same_where_nothing_is_near(poisoned):
    """Few tokens, so that no two masses are within rounding of a random number."""
    rng = np.random.default_rng(13)
    logits, rows = random_logits(rng, 64, 200), every_kind(rng, 64, 200)
    with poisoned():
        tokens, _ = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert torch.equal(tokens, sample(SAMPLE_ON_GPU, logits, rows)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("sampled", "width"), [(1, 1), (16, 1), (4, 16), (0, 1)])
def test_packed_outputs(poisoned, dtype, sampled, width):
    generator = torch.Generator().manual_seed(sampled)
    n = sampled * width + 1
    hidden = torch.randn(n + 3, 5120, generator=generator)
    hidden[1::5, 77] = torch.inf

    def draw(*shape):
        return torch.randint(-1, n, shape, generator=generator).cuda()

    last = torch.randint(0, n, (max(1, sampled),), generator=generator)
    spans = torch.stack((last, torch.ones_like(last), last, torch.zeros_like(last)), 1).int()
    arguments = (
        hidden.to("cuda", dtype),
        spans.cuda(),
        (torch.rand(n, generator=generator) < 0.8).cuda(),
        *(draw(sampled, width), draw(sampled, width), draw(sampled), draw(sampled)),
        draw(sampled, width).clamp_max(width - 1),
    )
    with poisoned():
        found = pack_outputs_kernel.pack_outputs(PACK_ON_GPU, *arguments)
    assert torch.equal(found, pack_outputs(PACK_ON_GPU, *arguments))


@pytest.mark.parametrize("most_rows", [2, 4, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_accepted_drafts_equal_the_reference(drafted_sequences, poisoned, seed, most_rows):
    given = [part.cuda() for part in drafted_sequences(seed, most_rows)]
    with poisoned():
        found = accept_drafts_kernel.accept_drafts(ACCEPT_ON_GPU, *given)
    for part, expected in zip(found, accept_drafts(ACCEPT_ON_GPU, *given), strict=True):
        assert torch.equal(part, expected)

"""Sampling, accepted drafts and packed outputs on the GPU, over vocabularies of released models:
every token has the largest key of those that truncation leaves, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kinfolk_kernels.accept_drafts import triton_backend as accept_drafts_kernel
from kinfolk_kernels.accept_drafts.op import AcceptDraftsArguments, accept_drafts
from kinfolk_kernels.pack_outputs import triton_backend as pack_outputs_kernel
from kinfolk_kernels.pack_outputs.op import PackOutputsArguments, pack_outputs
from kinfolk_kernels.sample import triton_backend as kernel
from kinfolk_kernels.sample.noise import ERROR, noise, noise_words, rough_noise
from kinfolk_kernels.sample.op import SampleArguments, argmax, candidates, sample
from kinfolk_kernels.sample.philox import gumbel

SAMPLE_ON_GPU = SampleArguments(torch.device("cuda"))
PACK_ON_GPU = PackOutputsArguments(torch.device("cuda"))
ACCEPT_ON_GPU = AcceptDraftsArguments(torch.device("cuda"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MASS = 2e-6
"""How far the mass before a token may be off: exponentials in float32, and sums of up to 262144 of
them."""

KEY = 1e-12
"""How far keys in float64 may be off: two logarithms, rounded otherwise."""


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


def keys_of(logits, rows, top_p, min_p):
    """Keys float64 of what truncation leaves, -inf for other tokens, [n, V]."""
    p, tokens = candidates(logits, replace(rows, top_p=top_p, min_p=min_p))
    scaled = logits / torch.where(rows.temperature == 0, 1, rows.temperature)[:, None]
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (scaled.double() - scaled.amax(1, keepdim=True).double()) + gumbel(
        rows.seed[:, None], rows.position[:, None], ids
    )
    kept = torch.zeros_like(keys, dtype=torch.bool).scatter(1, tokens, p > 0)
    return torch.where(kept, keys, -torch.inf)


def assert_drawn(tokens, logits, rows):
    """A token is left by a truncation that is wider by rounding, and no token that one narrower by
    rounding leaves has a larger key."""
    sooner = torch.where(rows.top_p < 1, rows.top_p - MASS, rows.top_p)
    narrow = keys_of(logits, rows, sooner, rows.min_p * (1 + 5 * MASS))
    wide = keys_of(logits, rows, rows.top_p + MASS, rows.min_p * (1 - 5 * MASS))
    found = wide.gather(1, tokens[:, None])[:, 0]
    drawn = rows.temperature > 0
    assert (found > -torch.inf)[drawn].all()
    assert (found >= narrow.amax(1) - KEY)[drawn].all()
    assert torch.equal(tokens[~drawn], argmax(logits)[~drawn])


@pytest.mark.parametrize("vocabulary", [151936, 248320, 262144, 100352, 32007])
@pytest.mark.parametrize("n", [1, 3, 16, 64])
def test_every_kind_of_row(poisoned, vocabulary, n):
    rng = np.random.default_rng(vocabulary + n)
    logits, rows = random_logits(rng, n, vocabulary), every_kind(rng, n, vocabulary)
    with poisoned():
        tokens, finite = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert finite.all()
    assert_drawn(tokens, logits, rows)


@pytest.mark.parametrize("grain", [0.0625, 100.0], ids=["ties", "all equal"])
def test_ties(poisoned, grain):
    rng = np.random.default_rng(5)
    logits, rows = random_logits(rng, 4, 40_009, grain), every_kind(rng, 4, 40_009)
    with poisoned():
        tokens, _ = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert_drawn(tokens, logits, rows)


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
    """Few tokens, so that no mass is within rounding of the bound of a truncation."""
    rng = np.random.default_rng(13)
    logits, rows = random_logits(rng, 64, 200), every_kind(rng, 64, 200)
    with poisoned():
        tokens, _ = kernel.sample(SAMPLE_ON_GPU, logits, rows)
    assert torch.equal(tokens, sample(SAMPLE_ON_GPU, logits, rows)[0])


@pytest.mark.parametrize("vocabulary", [2, 4097, 248320])
def test_where_nothing_is_truncated_the_reference_draws_the_same(poisoned, vocabulary):
    """No bound, so nothing that rounding decides but keys some 1e-14 apart."""
    rng = np.random.default_rng(vocabulary)
    logits, rows = random_logits(rng, 32, vocabulary), every_kind(rng, 32, vocabulary)
    whole = replace(
        rows,
        top_k=torch.zeros_like(rows.top_k),
        top_p=torch.ones_like(rows.top_p),
        min_p=torch.zeros_like(rows.min_p),
    )
    with poisoned():
        tokens, _ = kernel.sample(SAMPLE_ON_GPU, logits, whole)
    assert torch.equal(tokens, sample(SAMPLE_ON_GPU, logits, whole)[0])


@triton.jit
def noise_kernel(seed_ptr, position_ptr, exact_ptr, rough_ptr, PAIRS: tl.constexpr):
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    a, b, c, d = noise_words(tl.load(seed_ptr), tl.load(position_ptr), pair)
    tl.store(exact_ptr + 2 * pair, noise(a, b))
    tl.store(exact_ptr + 2 * pair + 1, noise(c, d))
    tl.store(rough_ptr + 2 * pair, rough_noise(a, b))
    tl.store(rough_ptr + 2 * pair + 1, rough_noise(c, d))


@triton.jit
def words_kernel(high_ptr, low_ptr, exact_ptr, rough_ptr, COUNT: tl.constexpr):
    at = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    high = tl.load(high_ptr + at).to(tl.uint32)
    low = tl.load(low_ptr + at).to(tl.uint32)
    tl.store(exact_ptr + at, noise(high, low))
    tl.store(rough_ptr + at, rough_noise(high, low))


def assert_noise(exact, rough, expected):
    """A device's fast logarithms, too, leave keys in float32 their bound."""
    assert (exact - expected).abs().max() < KEY
    assert (rough - expected).abs().max() < ERROR.value / 2


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (-1, 2**40 + 5), (2**62 + 3, -9)])
def test_noise_is_that_of_the_reference(seed, position):
    count = 1 << 22
    given = torch.tensor([seed]).cuda(), torch.tensor([position]).cuda()
    exact = torch.empty(count, dtype=torch.float64, device="cuda")
    rough = torch.empty(count, device="cuda")
    noise_kernel[(count // 2048,)](*given, exact, rough, 1024)
    assert_noise(exact, rough, gumbel(*given, torch.arange(count).cuda()))


def test_extreme_words_have_noise_within_its_error():
    edges = [0, 2**31, 2**32 - 1]
    edges += [1 << i for i in range(31)] + [2**32 - 1 - (1 << i) for i in range(30)]
    lows = [0, 1 << 11, 5 << 11, 2**31, 2**32 - 2**11, 2**32 - 1, 2047, 2**20]
    pairs = torch.cartesian_prod(torch.tensor(edges), torch.tensor(lows)).T.contiguous().cuda()
    exact = torch.empty(512, dtype=torch.float64, device="cuda")
    rough = torch.empty(512, device="cuda")
    words_kernel[(2,)](*pairs, exact, rough, 256)
    u = ((pairs[0] << 21) | (pairs[1] >> 11)).double().clamp_min(0.5) * 2.0**-53
    assert_noise(exact, rough, -(-u.log()).log())


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

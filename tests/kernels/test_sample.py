"""Philox4x32-10 against published vectors, noise made of it, and which rows are finite.

Tests of kinfolk.spec.sampling cover the drawn tokens.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kinfolk_kernels.sample.op import SampleArguments, sample
from kinfolk_kernels.sample.philox import gumbel, philox, uniforms

CPU = SampleArguments(torch.device("cpu"))

ONES = 0xFFFFFFFF
# Known answers of Random123: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words_of(*vectors):
    """The words of counters and keys, [n, 4]."""
    counters, keys = (torch.tensor([vector[i] for vector in vectors]) for i in (0, 1))
    return torch.stack(philox(counters.unbind(1), keys.unbind(1)), 1).tolist()


@pytest.mark.parametrize("vector", VECTORS)
def test_known_answers(vector):
    assert words_of(vector) == [list(vector[2])]


def test_blocks_are_independent_of_their_batch():
    assert words_of(*VECTORS) == [list(vector[2]) for vector in VECTORS]


def test_a_number_is_53_bits_of_its_pair_of_words():
    a, b, c, d = VECTORS[0][2]
    even, odd = ((high << 32 | low) >> 11 for high, low in ((a, b), (c, d)))
    assert drawn([0, 0], [0, 0], [0, 1]) == [even / 2**53, odd / 2**53]


def test_no_number_is_0_or_1(monkeypatch):
    for word, expected in ((0, 2**-54), (ONES, 1 - 2**-53)):
        words = (torch.tensor([word]),) * 4
        monkeypatch.setattr("kinfolk_kernels.sample.philox.philox", lambda *_, words=words: words)
        number = torch.tensor([1])
        assert uniforms(number, number, number).item() == expected
        noise = gumbel(number, number, number).item()
        assert noise == pytest.approx(-math.log(-math.log(expected)), rel=1e-15)


def drawn(seeds, positions, tokens):
    """The uniform numbers of unsigned seeds and positions, and of tokens."""
    unsigned = (np.array(x, np.uint64).view(np.int64) for x in (seeds, positions, tokens))
    return uniforms(*(torch.from_numpy(x) for x in unsigned)).tolist()


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_numbers_depend_on_their_seed_position_and_token_alone(rng):
    seeds = rng.integers(0, 2**64, 500, np.uint64)
    positions = rng.integers(0, 2**20, 500, np.uint64)
    tokens = rng.integers(0, 2**18, 500, np.uint64)
    together = drawn(seeds, positions, tokens)
    assert len(set(together)) == 500
    each = zip(seeds, positions, tokens, strict=True)
    assert [drawn([seed], [p], [token])[0] for seed, p, token in each] == together


@pytest.mark.parametrize("bit", [0, 31, 32, 47, 63])
def test_every_bit_of_a_seed_and_of_a_position_counts(bit):
    base = drawn([0], [0], [0])
    assert drawn([1 << bit], [0], [0]) != base
    assert drawn([0], [1 << bit], [0]) != base
    assert drawn([1 << bit], [0], [0]) != drawn([0], [1 << bit], [0])


def chance_of_cells(counts):
    """Chance that fair draws over equal cells are at least as uneven as these (chi-square)."""
    expected = counts.sum() / len(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seeds", "positions", "tokens"])
def test_numbers_are_uniform_and_neighbours_unrelated(axis):
    n = 40_000
    given = [torch.full((n,), 12345) for _ in range(3)]
    given[axis] = torch.arange(n)
    numbers = uniforms(*given)
    assert ((numbers > 0) & (numbers < 1)).all()
    cells = (numbers * 20).long().numpy()
    assert chance_of_cells(np.bincount(cells, minlength=20)) > 1e-3
    pairs = np.bincount(cells[0::2] * 20 + cells[1::2], minlength=400)
    assert chance_of_cells(pairs) > 1e-3
    noise = gumbel(*given).numpy()
    for step in (1, 2, 3):
        related = np.corrcoef(noise[step:], noise[:-step])[0, 1]
        assert abs(related) < 4 / n**0.5


def test_noise_has_the_distribution_of_gumbel():
    """The chance of at most x is exp(-exp(-x)); its mean is Euler's constant."""
    n = 40_000
    noise = gumbel(torch.tensor(1), torch.tensor(2), torch.arange(n)).numpy()
    cells = (np.exp(-np.exp(-noise)) * 50).astype(int)
    assert chance_of_cells(np.bincount(cells, minlength=50)) > 1e-3
    assert abs(noise.mean() - np.euler_gamma) < 4 * math.pi / 6**0.5 / n**0.5


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_known(bad):
    logits = torch.zeros(3, 9)
    logits[1, 7] = bad
    _, finite = sample(CPU, logits, SimpleNamespace(greedy=True))
    assert finite.tolist() == [True, False, True]

"""Philox4x32-10 against published vectors, uniform numbers made of it, and which rows are finite.

Tests of kinfolk.spec.sampling cover the drawn tokens.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kinfolk_kernels.sample.op import SampleArguments, sample
from kinfolk_kernels.sample.philox import philox, uniforms

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


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter, key, expected):
    found = philox(torch.tensor([counter]), torch.tensor([key]))
    assert found.tolist() == [list(expected)]


def test_blocks_are_independent_of_their_batch():
    counters = torch.tensor([vector[0] for vector in VECTORS])
    keys = torch.tensor([vector[1] for vector in VECTORS])
    assert philox(counters, keys).tolist() == [list(vector[2]) for vector in VECTORS]


def test_a_uniform_number_is_the_first_53_bits():
    words = VECTORS[0][2]
    bits = (words[0] << 32 | words[1]) >> 11
    assert drawn([0], [0]) == [bits / 2**53]


def drawn(seeds, positions):
    """The uniform numbers of unsigned seeds and positions."""
    return uniforms(
        *(torch.from_numpy(np.array(x, np.uint64).view(np.int64)) for x in (seeds, positions))
    ).tolist()


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_numbers_depend_on_their_seed_and_position_alone(rng):
    seeds = rng.integers(0, 2**64, 500, np.uint64)
    positions = rng.integers(0, 2**20, 500, np.uint64)
    together = drawn(seeds, positions)
    assert len(set(together)) == 500
    assert [drawn([seed], [p])[0] for seed, p in zip(seeds, positions, strict=True)] == together


@pytest.mark.parametrize("bit", [0, 31, 32, 47, 63])
def test_every_bit_of_a_seed_and_of_a_position_counts(bit):
    base = drawn([0], [0])
    assert drawn([1 << bit], [0]) != base
    assert drawn([0], [1 << bit]) != base
    assert drawn([1 << bit], [0]) != drawn([0], [1 << bit])


def chance_of_cells(counts):
    """Chance that fair draws over equal cells are at least as uneven as these (chi-square)."""
    expected = counts.sum() / len(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.parametrize("axis", ["positions", "seeds"])
def test_numbers_are_uniform_and_neighbours_unrelated(axis):
    n = 40_000
    walk = torch.arange(n)
    fixed = torch.full((n,), 12345)
    numbers = uniforms(fixed, walk) if axis == "positions" else uniforms(walk, fixed)
    assert ((numbers >= 0) & (numbers < 1)).all()
    cells = (numbers * 20).long().numpy()
    assert chance_of_cells(np.bincount(cells, minlength=20)) > 1e-3
    pairs = np.bincount(cells[0::2] * 20 + cells[1::2], minlength=400)
    assert chance_of_cells(pairs) > 1e-3


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_known(bad):
    logits = torch.zeros(3, 9)
    logits[1, 7] = bad
    _, finite = sample(CPU, logits, SimpleNamespace(greedy=True))
    assert finite.tolist() == [True, False, True]

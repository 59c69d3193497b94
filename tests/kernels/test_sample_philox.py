"""Philox4x32-10 against published vectors, and the uniform numbers made of it."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.spec.philox import philox, uniforms

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
    found = philox(np.array([counter], np.uint64), np.array([key], np.uint64))
    assert found.tolist() == [list(expected)]


def test_blocks_are_independent_of_their_batch():
    counters = np.array([vector[0] for vector in VECTORS], np.uint64)
    keys = np.array([vector[1] for vector in VECTORS], np.uint64)
    assert philox(counters, keys).tolist() == [list(vector[2]) for vector in VECTORS]


def test_a_uniform_number_is_the_first_53_bits():
    words = VECTORS[0][2]
    bits = (words[0] << 32 | words[1]) >> 11
    assert uniforms([0], [0])[0] == bits / 2**53


def test_numbers_depend_on_their_seed_and_position_alone(rng):
    seeds = rng.integers(0, 2**64, 500, np.uint64)
    positions = rng.integers(0, 2**20, 500, np.uint64)
    together = uniforms(seeds, positions)
    order = rng.permutation(500)
    assert np.array_equal(uniforms(seeds[order], positions[order]), together[order])
    alone = [
        uniforms([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)
    ]
    assert alone == together.tolist()


@pytest.mark.parametrize("bit", [0, 31, 32, 47, 63])
def test_every_bit_of_a_seed_and_of_a_position_counts(bit):
    base = uniforms([0], [0])[0]
    assert uniforms([1 << bit], [0])[0] != base
    assert uniforms([0], [1 << bit])[0] != base
    assert uniforms([1 << bit], [0])[0] != uniforms([0], [1 << bit])[0]


@pytest.mark.parametrize("axis", ["positions", "seeds"])
def test_numbers_are_uniform_and_neighbours_unrelated(chance_of, axis):
    n = 40_000
    walk = np.arange(n, dtype=np.uint64)
    fixed = np.full(n, 12345, np.uint64)
    drawn = uniforms(fixed, walk) if axis == "positions" else uniforms(walk, fixed)
    assert ((drawn >= 0) & (drawn < 1)).all()
    cells = (drawn * 20).astype(int)
    assert chance_of(np.bincount(cells, minlength=20), np.full(20, 1 / 20)) > 1e-3
    pairs = np.bincount(cells[0::2] * 20 + cells[1::2], minlength=400)
    assert chance_of(pairs, np.full(400, 1 / 400)) > 1e-3

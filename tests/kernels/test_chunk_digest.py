"""Compressed keys against the keys that they stand for, in float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.chunk_digest.op import (
    ChunkDigestArguments,
    KeyDigest,
    chunk_digest,
    digest_bytes,
    restored,
)
from kinfolk_kernels.codecs import Coded, encode, rotate, rotation_size
from kinfolk_kernels.stored_kind import StoredKind

CPU = torch.device("cpu")

ERROR = (0.25, 0.45)
"""Four levels leave 0.119 of the variance of normal numbers, so 0.345 of a vector; vectors of 64
numbers spread around it."""


def keys_of(dim, heads=2, blocks=5, seed=0):
    """Keys with a mean that is large beside their spread, as keys of models have."""
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(heads, 1, dim, generator=generator)
    return mean + torch.randn(blocks, heads, 64, dim, generator=generator)


def digest_of(keys, blocks=(1, 3, 4), first=0):
    kind = StoredKind.of(keys)
    digest = KeyDigest.empty((len(blocks), kind.heads), kind.dim, CPU)
    chunk_digest(
        ChunkDigestArguments(kind, CPU),
        keys,
        torch.tensor(blocks, dtype=torch.int32),
        torch.full((len(blocks),), first, dtype=torch.int32),
        torch.arange(len(blocks), dtype=torch.int32),
        digest,
    )
    return digest


def turned(x):
    """Walsh-Hadamard transform in float64, by the matrix of Sylvester's construction."""
    size = rotation_size(x.shape[-1])
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (x.double().unflatten(-1, (-1, size)) @ matrix / size**0.5).flatten(-2)


def centred(keys, blocks=(1, 3, 4), first=0):
    keys = keys.double()
    return keys[list(blocks)] - keys[first].mean(1, keepdim=True)


@pytest.mark.parametrize("dim", [20, 64, 128, 256])
def test_numbers_are_off_as_four_levels_must_be(dim):
    keys = keys_of(dim)
    expected = turned(centred(keys))
    error = (restored(digest_of(keys)) - expected).norm(dim=-1) / expected.norm(dim=-1)
    low, high = (0, 0.6) if dim == 20 else ERROR
    assert float(error.min()) > low
    assert float(error.max()) < high
    assert float(error.mean()) == pytest.approx(0.345, abs=0.03 if dim == 20 else 0.01)


def test_a_scale_is_the_best_for_its_codes():
    keys = keys_of(128)
    digest = digest_of(keys)
    levels = restored(KeyDigest(digest.codes, torch.ones_like(digest.scales))).double()
    best = (turned(centred(keys)) * levels).sum(-1) / levels.square().sum(-1)
    assert torch.allclose(digest.scales.double(), best, rtol=1e-3, atol=0)


def test_bits_stand_where_the_layout_says():
    keys = torch.zeros(2, 1, 64, 8)
    keys[1, 0, 5] = rotate(torch.tensor([-9.0, -1, 1, 9, 9, 1, -1, -9]))
    keys[1, 0, 6] = rotate(torch.tensor([9.0, 9, 9, 9, -9, -9, -9, -9]))
    codes = digest_of(keys, (1,)).codes[0, 0]
    assert codes[5].tolist() == [0b01_11_10_00, 0b00_10_11_01]
    assert codes[6].tolist() == [0b00_00_11_11] * 2


def test_a_mean_that_all_keys_have_changes_no_digest():
    """Whole numbers, so that sums are the same: the mean of 64 of them too."""
    keys = (4 * torch.randn(5, 2, 64, 64, generator=torch.Generator().manual_seed(1))).round()
    moved = keys + torch.arange(64) * 8
    plain, shifted = digest_of(keys), digest_of(moved)
    assert torch.equal(plain.codes, shifted.codes)
    assert torch.equal(plain.scales, shifted.scales)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_a_vector_that_is_not_finite_becomes_zero_and_no_other_does(bad):
    keys = keys_of(64)
    before = digest_of(keys)
    keys[3, 1, 7, 2] = bad
    after = digest_of(keys)
    assert not restored(after)[1, 1, 7].any()
    same = torch.ones(3, 2, 64, dtype=torch.bool)
    same[1, 1, 7] = False
    assert torch.equal(after.codes[same], before.codes[same])
    assert torch.equal(after.scales[same], before.scales[same])


def test_keys_that_equal_the_mean_become_zero():
    assert not restored(digest_of(torch.full((5, 2, 64, 64), 2.5))).any()


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_quantised_keys_have_the_digest_of_their_numbers(format, rotated):
    keys = keys_of(64)
    codes, scales = encode(format, rotate(keys) if rotated else keys)
    expected = turned(centred(keys))
    found = restored(digest_of(Coded(format, codes, scales, rotated)))
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    # Four bits of a number that is mostly mean leave less of the rest.
    assert float(error.mean()) < (0.36 if format == "q8_0" else 0.7)


def test_padding_and_other_places_are_not_written():
    keys = keys_of(64)
    digest = KeyDigest.empty((4, 2), 64, CPU)
    digest.codes.fill_(7)
    places = torch.tensor([2, -1, 0], dtype=torch.int32)
    blocks = torch.tensor([1, 3, 4], dtype=torch.int32)
    chunk_digest(
        ChunkDigestArguments(StoredKind.of(keys), CPU), keys, blocks, 0 * blocks, places, digest
    )
    expected = digest_of(keys)
    assert torch.equal(digest.codes[[2, 0]], expected.codes[[0, 2]])
    assert torch.equal(digest.scales[[2, 0]], expected.scales[[0, 2]])
    assert bool((digest.codes[[1, 3]] == 7).all())


def test_bytes_are_those_that_are_allocated():
    digest = KeyDigest.empty((10, 3, 4), 256, CPU)
    assert digest.codes.nbytes + digest.scales.nbytes == 10 * 3 * 64 * digest_bytes(4, 256)
    assert digest_bytes(4, 256) == 264


def test_dimensions_that_do_not_fill_bytes_are_refused():
    with pytest.raises(ValueError, match="keys of 30 dimensions have no digest"):
        ChunkDigestArguments(StoredKind(1, 30, torch.float32), CPU)

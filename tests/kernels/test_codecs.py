"""Storage of keys and values in blocks, against gguf-py bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kinfolk_kernels import codecs
from kinfolk_kernels.codecs import FORMATS, Coded, decode, encode, rotate, rotation_size

FORMAT = pytest.mark.parametrize("format", FORMATS)
SCALE_BYTES = 2


def in_a_file(format, x):
    """The blocks of a GGUF file for rows x: scales float16 [R, D / 32] and codes [R, bytes]."""
    raw = gguf.quantize(x.numpy(), gguf.GGMLQuantizationType[format.upper()])
    blocks = raw.reshape(x.shape[0], x.shape[1] // 32, -1)
    scales = blocks[..., :SCALE_BYTES].copy().view(np.float16)[..., 0]
    codes = blocks[..., SCALE_BYTES:].reshape(x.shape[0], -1)
    return torch.from_numpy(scales), torch.from_numpy(codes.copy())


@pytest.fixture
def hard(numbers):
    """Rows with ties, halves between codes, zeros, one sign only, and tiny and large numbers."""
    x = numbers(64, 96)
    x[0] = 0
    x[1] = torch.arange(96) % 9 - 4
    x[2] = x[2].abs()
    x[3] = -x[3].abs()
    x[4] *= 1e-9
    x[5] *= 1e3
    x[6] = torch.linspace(-127, 127, 96)
    x[7] = (torch.arange(96) - 48) / 2
    x[8, 32:64] = 0
    return x


@FORMAT
def test_codes_and_scales_are_those_of_files(hard, format):
    codes, scales = encode(format, hard)
    expected_scales, expected_codes = in_a_file(format, hard)
    assert torch.equal(scales.view(torch.int16), expected_scales.view(torch.int16))
    assert torch.equal(codes, expected_codes)


@FORMAT
def test_numbers_are_those_that_files_stand_for(hard, format):
    kind = gguf.GGMLQuantizationType[format.upper()]
    expected = gguf.dequantize(gguf.quantize(hard.numpy(), kind), kind)
    assert torch.equal(decode(format, *encode(format, hard)), torch.from_numpy(expected))


@FORMAT
def test_leading_dimensions_are_kept_and_only_picked_vectors_decoded(numbers_of_a_pool, format):
    pool, x = numbers_of_a_pool(format)
    assert pool.dim == x.shape[-1]
    picked = codecs.numbers(pool, lambda plane: plane[1, :, 3])
    assert torch.equal(picked, decode(format, *encode(format, x[1, :, 3])))
    assert codecs.numbers(pool).shape == x.shape


@pytest.fixture
def numbers_of_a_pool(numbers):
    def make(format):
        x = numbers(3, 2, 5, 64)
        return Coded(format, *encode(format, x)), x

    return make


@pytest.mark.parametrize(("dim", "size"), [(256, 256), (96, 32), (80, 16), (7, 1)])
def test_a_rotation_multiplies_by_the_matrix_of_walsh_and_hadamard(numbers, dim, size):
    assert rotation_size(dim) == size
    index = torch.arange(size)
    both = index[:, None] & index
    signs = torch.tensor([[(-1.0) ** int(n).bit_count() for n in row] for row in both.tolist()])
    x = numbers(5, dim)
    blocks = x.double().unflatten(-1, (-1, size))
    expected = (blocks @ signs.double() / size**0.5).flatten(-2)
    assert float((rotate(x) - expected).norm() / expected.norm()) < 1e-6


def test_a_rotation_is_its_own_inverse_and_keeps_scores(numbers):
    q, k = numbers(4, 128), numbers(6, 128)
    assert float((rotate(rotate(q)) - q).norm() / q.norm()) < 1e-6
    scores = q @ k.T
    assert float((rotate(q) @ rotate(k).T - scores).norm() / scores.norm()) < 1e-6


def test_a_rotation_helps_where_few_numbers_are_large():
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    x[:, 5] *= 40

    def error(y):
        return float((decode("q4_0", *encode("q4_0", y)) - y).norm() / y.norm())

    assert error(rotate(x)) < error(x)

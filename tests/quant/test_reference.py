"""Dequantisers give the bits that gguf-py gives."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from kinfolk.descriptors import resolve
from kinfolk.quant.formats import BUILTIN_FORMATS
from kinfolk.quant.reference import MXFP4_SCALES

ROWS, BLOCKS = 24, 5

# Where the float16 scales of a block stand.
SCALES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


@pytest.fixture(params=BUILTIN_FORMATS, ids=lambda format_: format_.name)
def format_(request):
    return request.param


def blocks_of(format_, rng, scale=None):
    """Random bytes uint8 [rows, row bytes]; with ``scale`` those scales instead of random ones."""
    data = rng.integers(0, 256, (ROWS * BLOCKS, format_.bytes), dtype=np.uint8)
    if scale is not None:
        for start in SCALES.get(format_.name, ()):
            data[:, start : start + 2] = np.array([scale], np.float16).view(np.uint8)
    return data.reshape(ROWS, -1)


def assert_same_bits(format_, data):
    with np.errstate(all="ignore"):
        expected = np.asarray(
            dequantize(data.copy(), gguf.GGMLQuantizationType(format_.ggml_type)), np.float32
        )
    found = resolve(format_.dequantize)(data)
    assert found.dtype == np.float32
    assert found.shape == (*data.shape[:-1], data.shape[-1] // format_.bytes * format_.block)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


def test_random_bytes(format_, rng):
    assert_same_bits(format_, blocks_of(format_, rng))


@pytest.mark.parametrize("scale", [0.0, -0.0, -0.37, 1.0, 6e-8, -65504.0, np.inf])
def test_zero_negative_tiny_huge_and_infinite_scales(format_, rng, scale):
    assert_same_bits(format_, blocks_of(format_, rng, scale))


@pytest.mark.parametrize("byte", [0x00, 0x0F, 0xF0, 0xFF, 0x80, 0x7F])
def test_extreme_codes(format_, rng, byte):
    data = blocks_of(format_, rng, 0.013).reshape(-1, format_.bytes)
    kept = {start: data[:, start : start + 2].copy() for start in SCALES.get(format_.name, ())}
    data[:] = byte
    for start, scale in kept.items():
        data[:, start : start + 2] = scale
    assert_same_bits(format_, data.reshape(ROWS, -1))


def test_more_blocks_than_are_decoded_at_once(format_, rng):
    blocks = (1 << 17) // format_.block + 3
    data = rng.integers(0, 64, (1, blocks * format_.bytes), dtype=np.uint8)
    assert_same_bits(format_, data)


def test_leading_dimensions_and_views_are_kept(format_, rng):
    data = blocks_of(format_, rng, 0.5).reshape(2, 3, 4, -1)[:, 1:]
    assert_same_bits(format_, data)


def test_read_only_bytes_are_enough(format_, rng):
    data = blocks_of(format_, rng, 0.5)
    data.flags.writeable = False
    assert resolve(format_.dequantize)(data).shape[0] == ROWS


def test_no_rows_are_no_numbers(format_):
    assert resolve(format_.dequantize)(np.empty((0, format_.bytes), np.uint8)).shape == (
        0,
        format_.block,
    )


def test_mxfp4_scales_are_powers_of_two_with_two_subnormals():
    exponents = np.arange(256)
    assert np.array_equal(MXFP4_SCALES.astype(np.float64), 2.0 ** (exponents - 128))

"""Encoders: ggml's bytes where ggml defines them, and blocks that decode to what was encoded."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import quantize

from kinfolk.descriptors import resolve
from kinfolk.errors import ModelFormatError
from kinfolk.quant.formats import BUILTIN_FORMATS, QuantFormats

WRITABLE = [format_ for format_ in BUILTIN_FORMATS if format_.quantize]
BLOCKED = [format_ for format_ in WRITABLE if format_.block > 1]
DEFINED = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")

# The largest error of a block, in parts of its largest magnitude.
WORST = {
    "Q8_0": 0.005,
    "Q4_0": 0.13,
    "Q4_1": 0.07,
    "Q5_0": 0.065,
    "Q5_1": 0.035,
    "Q2_K": 0.5,
    "Q3_K": 0.25,
    "Q4_K": 0.1,
    "Q5_K": 0.05,
    "Q6_K": 0.035,
    "IQ4_NL": 0.15,
}


def names(formats):
    return {"argvalues": formats, "ids": [format_.name for format_ in formats]}


def encode(format_, numbers):
    return resolve(format_.quantize)(numbers)


def decode(format_, data):
    return resolve(format_.dequantize)(data)


@pytest.fixture
def hard_rows(rng):
    """Rows [6, 512]: random, zeros, halves (ties), one sign only, tiny, and a lone number."""
    rows = rng.standard_normal((6, 512)).astype(np.float32)
    rows[1] = 0
    rows[2] = np.round(4 * rows[2]) / 2
    rows[3] = np.abs(rows[3])
    rows[4] *= 1e-6
    rows[5, 1:] = 0
    return rows


@pytest.mark.parametrize("name", DEFINED)
def test_bytes_equal_those_of_the_reference(name, hard_rows):
    with np.errstate(all="ignore"):
        expected = quantize(hard_rows.copy(), gguf.GGMLQuantizationType[name]).view(np.uint8)
    assert np.array_equal(encode(QuantFormats().named(name), hard_rows), expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_numbers_that_a_plain_format_holds_come_back_exactly(name):
    format_ = QuantFormats().named(name)
    numbers = np.array([[0, -0.0, 1.5, -256, 2.0**-14, np.inf, -np.inf, np.nan]], np.float32)
    found = decode(format_, encode(format_, numbers))
    assert np.array_equal(found, numbers, equal_nan=True)
    assert np.array_equal(np.signbit(found[:, :7]), np.signbit(numbers[:, :7]))


@pytest.mark.parametrize("format_", **names(BLOCKED))
def test_errors_stay_within_the_resolution_of_the_format(format_, hard_rows):
    for row in hard_rows[[0, 2, 3]]:
        error = np.abs(decode(format_, encode(format_, row)) - row).reshape(-1, format_.block)
        largest = np.abs(row).reshape(-1, format_.block).max(axis=1)
        assert (error.max(axis=1) <= WORST[format_.name] * largest).all()


@pytest.mark.parametrize("format_", **names(BLOCKED))
def test_zeros_stay_zeros(format_):
    assert not decode(format_, encode(format_, np.zeros((2, 256), np.float32))).any()


@pytest.mark.parametrize("format_", **names([f for f in BLOCKED if f.block == 256]))
def test_numbers_far_below_the_range_of_half_precision_do_not_vanish(format_):
    numbers = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32) * 4e-6
    found = decode(format_, encode(format_, numbers))
    assert np.square(found - numbers).sum() < 0.5 * np.square(numbers).sum()


@pytest.mark.parametrize("format_", **names([f for f in BLOCKED if f.name != "Q2_K"]))
def test_encoding_what_was_decoded_changes_little(format_, blocks):
    once = decode(format_, encode(format_, blocks))
    twice = decode(format_, encode(format_, once))
    first, second = np.square(once - blocks).sum(), np.square(twice - once).sum()
    assert second < 0.5 * first


@pytest.mark.parametrize("format_", **names(WRITABLE))
def test_pieces_encode_as_the_whole_does(format_, rng):
    numbers = rng.standard_normal((5, 256 * 60)).astype(np.float32)
    whole = encode(format_, numbers)
    assert whole.dtype == np.uint8
    assert whole.shape == (5, 256 * 60 // format_.block * format_.bytes)
    parts = [encode(format_, numbers[i]) for i in range(5)]
    assert np.array_equal(whole, np.stack(parts))


@pytest.mark.parametrize("format_", **names(WRITABLE))
def test_other_float_types_and_strided_views_are_accepted(format_, rng):
    numbers = rng.standard_normal((2, 3, 512)).astype(np.float16)
    wide = numbers.astype(np.float64)
    expected = encode(format_, numbers.astype(np.float32))
    assert np.array_equal(encode(format_, numbers), expected)
    assert np.array_equal(encode(format_, wide), expected)
    strided = np.repeat(numbers, 2, axis=0)[::2]
    assert np.array_equal(encode(format_, strided), expected)


@pytest.mark.parametrize("format_", **names(BLOCKED))
def test_rows_that_are_no_blocks_are_refused(format_):
    with pytest.raises(ModelFormatError, match=f"rows of 48 .* blocks of {format_.block}"):
        encode(format_, np.ones((2, 48), np.float32))


@pytest.mark.parametrize("format_", **names(BLOCKED))
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_numbers_that_no_block_can_hold_are_refused(format_, value):
    numbers = np.ones((2, 256), np.float32)
    numbers[1, 7] = value
    with pytest.raises(ModelFormatError, match="infinite or NaN"):
        encode(format_, numbers)


def test_numbers_beyond_half_precision_are_refused_by_f16():
    with pytest.raises(ModelFormatError, match="beyond 65504"):
        encode(QuantFormats().named("F16"), np.array([[1e6]], np.float32))

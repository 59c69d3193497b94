"""Blocks unlike those of weights: values that a format cannot hold are refused, others are kept."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.descriptors import resolve
from kinfolk.errors import ModelFormatError
from kinfolk.quant.formats import BUILTIN_FORMATS, QuantFormats

WRITABLE = [format_ for format_ in BUILTIN_FORMATS if format_.quantize]
BLOCKED = [format_ for format_ in WRITABLE if format_.block > 1]
SEARCHED = [f for f in BLOCKED if f.block == 256 or f.name == "IQ4_NL"]

# The largest error of a block, in parts of its largest magnitude.
WORST = {
    "F32": 0.0,
    "F16": 0.001,
    "BF16": 0.004,
    "Q8_0": 0.006,
    "Q4_0": 0.13,
    "Q4_1": 0.08,
    "Q5_0": 0.07,
    "Q5_1": 0.04,
    "Q2_K": 0.6,
    "Q3_K": 0.3,
    "Q4_K": 0.15,
    "Q5_K": 0.08,
    "Q6_K": 0.04,
    "IQ4_NL": 0.2,
}

LEAST = 2.0**-24
"""The least positive number of float16."""


def named(formats):
    return {"argvalues": formats, "ids": [format_.name for format_ in formats]}


def there_and_back(format_, numbers):
    """The numbers after encoding and decoding, without any warning of numpy's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded = resolve(format_.quantize)(numbers)
    return resolve(format_.dequantize)(encoded)


def assert_kept(format_, numbers):
    found = there_and_back(format_, numbers).reshape(-1, format_.block).astype(np.float64)
    numbers = numbers.reshape(found.shape).astype(np.float64)
    largest = np.abs(numbers).max(axis=1, keepdims=True)
    # Below the least scale numbers become multiples of it, by 127 at most.
    bound = WORST[format_.name] * largest + 64 * LEAST
    assert (np.abs(found - numbers) <= bound).all()


def largest(format_):
    """The largest magnitude that every block of the format holds, with any signs."""
    tops = {"F32": 3.4e38, "F16": 65504.0, "BF16": 3.38e38, "Q4_1": 65504.0, "Q5_1": 65504.0}
    scale = {"Q8_0": 127, "Q4_0": 8, "Q5_0": 16, "Q2_K": 15, "Q3_K": 96, "Q4_K": 63, "Q5_K": 63,
             "Q6_K": 3968, "IQ4_NL": 113}  # fmt: skip
    return tops.get(format_.name) or 65504.0 * scale[format_.name]


def block_of(kind, magnitude):
    """Eight times 32 numbers, of which the largest has the magnitude."""
    rng = np.random.default_rng(5)
    numbers = rng.uniform(-1, 1, 256)
    if kind == "positive":
        numbers = np.abs(numbers)
    elif kind == "negative":
        numbers = -np.abs(numbers)
    elif kind == "one number":
        numbers[1:] = 0
    elif kind == "flat":
        numbers[:] = 1
    elif kind == "one group":
        numbers[32:] = 0
    elif kind == "groups of every size":
        numbers *= np.repeat(10.0 ** -np.arange(0, 40, 5), 32)
    numbers /= np.abs(numbers).max()
    return (numbers * magnitude).astype(np.float32)


KINDS = ("mixed", "positive", "negative", "one number", "flat", "one group",
         "groups of every size")  # fmt: skip


@pytest.mark.parametrize("format_", **named(WRITABLE))
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_up_to_the_largest_are_kept(format_, kind):
    for share in (0.999, 0.9, 0.5, 1e-3, 1e-5):
        assert_kept(format_, block_of(kind, share * largest(format_)))


@pytest.mark.parametrize("format_", **named(BLOCKED))
@pytest.mark.parametrize("magnitude", [3e38, 1e30, 1e19, 1e12])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_what_scales_hold_are_refused(format_, kind, magnitude):
    with pytest.raises(ModelFormatError, match="choose BF16 or F32"):
        there_and_back(format_, block_of(kind, magnitude))


@pytest.mark.parametrize("format_", **named(SEARCHED))
@pytest.mark.parametrize("sign", [1, -1])
def test_the_message_names_format_number_and_limit(format_, sign):
    numbers = np.zeros((2, 256), np.float32)
    numbers[1, 3] = sign * 1.01 * largest(format_)
    message = rf"^a number is {numbers[1, 3]:g}, and {largest(format_):g} .* {format_.name} "
    with pytest.raises(ModelFormatError, match=message.replace("+", r"\+")):
        there_and_back(format_, numbers)


@pytest.mark.parametrize("format_", **named(WRITABLE))
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_all_next_to_nothing_become_next_to_nothing(format_, kind):
    for magnitude in (1e-45, 3e-40, 1.2e-38, 1e-30, 1e-20, 1e-12, 1e-9):
        found = there_and_back(format_, block_of(kind, magnitude))
        assert np.abs(found).max() <= LEAST


@pytest.mark.parametrize("format_", **named([f for f in SEARCHED if f.block == 256]))
def test_the_largest_number_of_a_small_block_is_not_cut_off(format_):
    """Scales that small are stored in steps of 2^-24, a third of the scale or more."""
    for exponent in np.arange(-23, -8, 0.125):
        numbers = np.zeros(256, np.float32)
        numbers[7] = 2.0**exponent
        error = np.abs(there_and_back(format_, numbers) - numbers).max()
        assert error <= max(WORST[format_.name] * numbers[7], LEAST), exponent


def test_bf16_refuses_what_would_round_to_infinity():
    bf16 = QuantFormats().named("BF16")
    top = np.array([[3.3895314e38, np.inf, -np.inf]], np.float32)
    assert np.array_equal(there_and_back(bf16, top), top)
    with pytest.raises(ModelFormatError, match=r"beyond 3\.38953e\+38, the largest that BF16"):
        there_and_back(bf16, np.array([[0, -3.4e38]], np.float32))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_K"])
def test_numbers_beyond_float32_are_refused(name):
    with pytest.raises(ModelFormatError):
        there_and_back(QuantFormats().named(name), np.full((1, 256), 1e300))


exponents = st.integers(-149, 127)
codes = st.integers(0, 2**31)


@st.composite
def wild_blocks(draw):
    """256 numbers: groups with magnitudes of their own, one sign or two, zeros among them."""
    rng = np.random.default_rng(draw(codes))
    top = draw(exponents)
    depth = draw(st.sampled_from([0, 1, 8, 40, 200]))
    groups = top - rng.integers(0, depth + 1, (8, 1))
    mantissas = rng.uniform(draw(st.sampled_from([-1, 0, 0.9])), 1, (8, 32))
    mantissas *= draw(st.sampled_from([1, -1]))
    mantissas[rng.random((8, 32)) < draw(st.sampled_from([0, 0.5, 0.97]))] = 0
    numbers = np.ldexp(mantissas, np.broadcast_to(groups, mantissas.shape)).reshape(256)
    return numbers.astype(np.float32)


@pytest.mark.parametrize("format_", **named(WRITABLE))
@settings(max_examples=60, deadline=None, derandomize=True)
@given(numbers=wild_blocks())
def test_every_block_is_kept_or_refused(format_, numbers):
    try:
        assert_kept(format_, numbers)
    except ModelFormatError:
        assert np.abs(numbers).max() > 0.99 * largest(format_)

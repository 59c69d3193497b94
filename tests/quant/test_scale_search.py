"""The scale searches come within 5 % of the error of trying every scale.

Given its scales a block's best codes are the nearest ones, so trying all integer scales for many
values of ``d`` (and ``dmin``) finds the least possible error up to the steps of these values.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kinfolk.descriptors import resolve
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.reference import IQ4_VALUES

TOLERANCE = 1.05


def root_mean_square(errors):
    return np.sqrt(np.mean(errors))


def error_of(name, blocks):
    """Squared errors of the encoder, [n, 256]."""
    format_ = QuantFormats().named(name)
    decoded = resolve(format_.dequantize)(resolve(format_.quantize)(blocks))
    return np.square(decoded.astype(np.float64) - blocks)


def halves(low, high, count):
    return np.linspace(low, high, count).astype(np.float16).astype(np.float32)


def inverse(values):
    return np.divide(1, values, out=np.zeros_like(values), where=values != 0)


def least_signed(groups, low, high, scales):
    """The least squared error of a block [groups, size] over all d and integer scales."""
    reach = np.abs(groups).max() / (-low * -scales[0])
    least = np.inf
    for d in halves(0.5 * reach, 1.4 * reach, 200):
        scale = scales * d
        codes = np.rint(groups[:, None, :] * inverse(scale)[None, :, None]).clip(low, high)
        errors = np.square(codes * scale[None, :, None] - groups[:, None, :]).sum(-1)
        least = min(least, errors.min(axis=1).sum())
    return least


def least_ranged(groups, high, scales, steps):
    """The same over d, dmin, integer scales and minima."""
    width = groups.max(axis=1).clip(0) - groups.min(axis=1).clip(None, 0)
    widest = width.max() / high / scales[-1]
    deepest = -groups.min() / scales[-1]
    least = np.inf
    for d, dmin in product(halves(0.6, 1.15, steps), halves(0.6, 1.15, steps)):
        scale, minimum = scales * np.float32(d * widest), scales * np.float32(dmin * deepest)
        shifted = groups[:, None, :] + minimum[None, :, None]
        codes = shifted[:, :, None, :] * inverse(scale)[None, None, :, None]
        np.rint(codes, out=codes)
        codes.clip(0, high, out=codes)
        codes *= scale[None, None, :, None]
        codes -= shifted[:, :, None, :]
        errors = np.einsum("gmsi,gmsi->gms", codes, codes)
        least = min(least, errors.reshape(len(groups), -1).min(axis=1).sum())
    return least


@pytest.mark.parametrize(
    ("name", "low", "high", "scales"),
    [("Q3_K", -4, 3, np.arange(-32, 32)), ("Q6_K", -32, 31, np.arange(-128, 128))],
)
def test_signed_formats(name, low, high, scales, blocks):
    scales = scales.astype(np.float32)
    least = [least_signed(block.reshape(16, 16), low, high, scales) for block in blocks]
    found = root_mean_square(error_of(name, blocks))
    assert found <= TOLERANCE * root_mean_square(np.array(least) / 256)


@pytest.mark.parametrize(
    ("name", "groups", "high", "highest_scale", "count", "steps"),
    [("Q2_K", 16, 3, 15, 8, 20), ("Q4_K", 8, 15, 63, 4, 7), ("Q5_K", 8, 31, 63, 4, 7)],
)
def test_ranged_formats(name, groups, high, highest_scale, count, steps, blocks):
    scales = np.arange(highest_scale + 1, dtype=np.float32)
    least = [
        least_ranged(block.reshape(groups, -1), high, scales, steps) for block in blocks[:count]
    ]
    found = root_mean_square(error_of(name, blocks[:count]))
    assert found <= TOLERANCE * root_mean_square(np.array(least) / 256)


def test_uneven_levels(blocks):
    least = []
    for block in blocks.reshape(-1, 32):
        reach = np.abs(block).max() / np.linspace(80, 180, 500)
        d = np.concatenate((reach, -reach)).astype(np.float16).astype(np.float32)
        levels = d[:, None, None] * IQ4_VALUES
        errors = np.square(levels - block[None, :, None]).min(axis=2).sum(axis=1)
        least.append(errors.min())
    found = root_mean_square(error_of("IQ4_NL", blocks))
    assert found <= TOLERANCE * root_mean_square(np.array(least) / 32)


@pytest.mark.parametrize(
    ("worse", "better"), [("Q2_K", "Q3_K"), ("Q3_K", "Q4_K"), ("Q4_K", "Q5_K"), ("Q5_K", "Q6_K")]
)
def test_more_bits_are_better(worse, better, blocks):
    assert error_of(better, blocks).sum() < 0.6 * error_of(worse, blocks).sum()

"""Blocks of numbers: like those of weights, and extreme ones."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pytest

FloatArray = npt.NDArray[np.float32]


def _numbers(kind: str, blocks: int) -> FloatArray:
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    shape = (blocks, 256)
    if kind == "gaussian":
        numbers = rng.standard_normal(shape)
    elif kind == "student":
        numbers = rng.standard_t(3, shape)
    elif kind == "laplace":
        numbers = rng.laplace(size=shape)
    elif kind == "uneven groups":
        spread = np.exp(0.7 * rng.standard_normal((blocks, 8, 1)))
        numbers = (rng.standard_normal((blocks, 8, 32)) * spread).reshape(shape)
    else:
        assert kind == "outliers"
        numbers = rng.standard_normal(shape)
        numbers[rng.random(shape) < 0.01] *= 20
    return (0.02 * numbers).astype(np.float32)


@pytest.fixture(params=["gaussian", "student", "laplace", "uneven groups", "outliers"])
def blocks(request: pytest.FixtureRequest) -> FloatArray:
    """Eight blocks of 256 numbers [8, 256]."""
    return _numbers(request.param, 8)

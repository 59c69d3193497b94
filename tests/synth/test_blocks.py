"""Random blocks: valid in every format, and of the deviation asked for."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from kinfolk.gguf.tensor_types import TENSOR_TYPES
from kinfolk.synth.blocks import FILLS, random_blocks, uniform

KIND = {kind.name: kind for kind in TENSOR_TYPES.values()}
NUMBERS = 1 << 18


def numbers(name: str, deviation: float, seed: int = 0) -> np.ndarray:
    count = NUMBERS // KIND[name].block
    data = random_blocks(name, count, deviation, np.random.SFC64(seed))
    assert data.dtype == np.uint8
    assert len(data) == count * KIND[name].bytes
    return dequantize(data.reshape(8, -1), GGMLQuantizationType[name])


# The input widths of small and of the largest released matrices.
@pytest.mark.parametrize("width", [64, 5120, 17408])
@pytest.mark.parametrize("name", FILLS)
def test_numbers_have_the_deviation_and_no_mean(name, width):
    deviation = width**-0.5
    found = numbers(name, deviation)
    assert np.isfinite(found).all()
    # Scales of MXFP4 are powers of two.
    assert found.std() == pytest.approx(deviation, rel=0.4 if name == "MXFP4" else 0.03)
    # The mean of a whole matrix, times the root of its width, is what it does to equal inputs.
    assert abs(found.mean()) * width**0.5 < 0.02
    assert (np.abs(found) < 8 * deviation).all()


@pytest.mark.parametrize("name", FILLS)
def test_blocks_differ_from_one_another(name):
    data = random_blocks(name, 2048, 0.02, np.random.SFC64(1)).reshape(2048, -1)
    if KIND[name].block > 1:
        assert len(np.unique(data, axis=0)) == 2048


@pytest.mark.parametrize("name", FILLS)
def test_the_stream_decides_every_byte(name):
    one, same, other = (random_blocks(name, 512, 0.02, np.random.SFC64(s)) for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_no_code_is_the_one_that_encoders_never_write():
    data = random_blocks("Q8_0", 4096, 0.02, np.random.SFC64(3)).reshape(4096, 34)
    assert data[:, 2:].view(np.int8).min() == -127


def test_uniform_numbers_fill_their_range():
    found = uniform(10_000, -1.5, -0.05, np.random.SFC64(0)).view("<f4")
    assert -1.5 <= found.min() < -1.49
    assert -0.06 < found.max() <= -0.05

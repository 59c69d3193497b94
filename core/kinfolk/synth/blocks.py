"""Random blocks of every format: valid scales, random codes, numbers of a wanted deviation.

Codes are random bits as they come. Scales are set so that the numbers of a block have mean zero
and the deviation asked for: without the zero mean, a large matrix would have one direction that
swamps all others. Formats with a minimum get it at the middle of their codes; in the others, whose
codes have no middle, the sign of each block's scale is random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from kinfolk.gguf.tensor_types import TENSOR_TYPES
from kinfolk.gguf.values import ByteArray
from kinfolk.quant.reference import IQ4_VALUES, MXFP4_VALUES

Fill = Callable[[ByteArray, float], None]
"""Turns random blocks, uint8 [n, bytes of a block], into valid ones of a deviation, in place."""


def random_blocks(
    name: str, count: int, deviation: float, source: np.random.BitGenerator
) -> ByteArray:
    """``count`` blocks of the format, flat uint8. Raises ``KeyError`` for one not known."""
    fill = FILLS[name]
    size = _BYTES[name]
    blocks = random_bytes(count * size, source).reshape(count, size)
    fill(blocks, deviation)
    return blocks.reshape(-1)


def random_bytes(count: int, source: np.random.BitGenerator) -> ByteArray:
    words: npt.NDArray[np.uint64] = source.random_raw(-(-count // 8))
    return words.view(np.uint8)[:count]


def uniform(count: int, low: float, high: float, source: np.random.BitGenerator) -> ByteArray:
    """``count`` float32 numbers between two bounds, as bytes."""
    words = random_bytes(4 * count, source).view("<u4")
    return (low + words * ((high - low) / 2**32)).astype("<f4").view(np.uint8)


_BYTES: Final = {kind.name: kind.bytes for kind in TENSOR_TYPES.values()}


def _rms(levels: Iterable[float]) -> float:
    return float(np.sqrt(np.mean(np.square(np.array(list(levels), np.float64)))))


def _spread(codes: int) -> float:
    """Deviation of the codes 0 .. codes - 1 about their middle."""
    return float(np.std(np.arange(codes)))


def _put(blocks: ByteArray, at: int, scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Store float16 at a byte of every block; returns what was stored."""
    half = scale.astype("<f2")
    blocks[:, at : at + 2] = half.view(np.uint8).reshape(-1, 2)
    return half.astype(np.float32)


def _put_scale(
    blocks: ByteArray, at: int, scale: float, *, signed: bool
) -> npt.NDArray[np.float32]:
    """Store ``scale``, up to an eighth more or less and with a random sign if ``signed``.

    The randomness is what stands at that place before.
    """
    factor = blocks[:, at].astype(np.float32) / np.float32(1024) + np.float32(0.875)
    if signed:
        np.negative(factor, out=factor, where=blocks[:, at + 1] < 128)
    return _put(blocks, at, factor * np.float32(scale))


def _signed(at: int, levels: Iterable[float]) -> Fill:
    """One scale a block, at byte ``at``."""
    rms = _rms(levels)

    def fill(blocks: ByteArray, deviation: float) -> None:
        _put_scale(blocks, at, deviation / rms, signed=True)

    return fill


def _centred(codes: int) -> Fill:
    """A scale, and the number that code 0 stands for, in the first four bytes."""

    def fill(blocks: ByteArray, deviation: float) -> None:
        scale = _put_scale(blocks, 0, deviation / _spread(codes), signed=False)
        _put(blocks, 2, scale * np.float32(-(codes - 1) / 2))

    return fill


# Quantised scales are drawn from the upper half of their range.
_SIX_BITS: Final = _rms(range(32, 64))
_SIX_BITS_SIGNED: Final = _rms(range(16, 32))
_FOUR_BITS: Final = _rms(range(8, 16))


def _q8_0(blocks: ByteArray, deviation: float) -> None:
    _put_scale(blocks, 0, deviation / _rms(range(-127, 128)), signed=True)
    codes = blocks[:, 2:]
    # No encoder produces -128, and not every kernel expects it.
    codes[codes == 128] = 127


def _q2_k(blocks: ByteArray, deviation: float) -> None:
    blocks[:, :16] = (blocks[:, :16] & 7 | 8) * 17
    scale = _put_scale(blocks, 80, deviation / (_FOUR_BITS * _spread(4)), signed=False)
    _put(blocks, 82, scale * np.float32(1.5))


def _q3_k(blocks: ByteArray, deviation: float) -> None:
    blocks[:, 104:108] = 255
    _put_scale(blocks, 108, deviation / (_SIX_BITS_SIGNED * _rms(range(-4, 4))), signed=True)


def _six_bit_pairs(codes: int) -> Fill:
    """Each sub-block's minimum has the same six bits as its scale."""

    def fill(blocks: ByteArray, deviation: float) -> None:
        scale = _put_scale(blocks, 0, deviation / (_SIX_BITS * _spread(codes)), signed=False)
        _put(blocks, 2, scale * np.float32((codes - 1) / 2))
        # Four scales at a time: their low six bits, and two bits each for four others.
        words = blocks.view("<u4")
        words[:, 1] |= 0xA0A0A0A0
        words[:, 2] = words[:, 1]
        words[:, 3] = (words[:, 3] & 0x0F0F0F0F) * np.uint32(17)

    return fill


def _q6_k(blocks: ByteArray, deviation: float) -> None:
    blocks[:, 192:208] = blocks[:, 192:208] & 31 | 32
    _put_scale(blocks, 208, deviation / (_SIX_BITS * _rms(range(-32, 32))), signed=True)


def _iq4_xs(blocks: ByteArray, deviation: float) -> None:
    blocks[:, 2:4] = 255
    _put_scale(blocks, 0, deviation / (_SIX_BITS_SIGNED * _rms(IQ4_VALUES)), signed=True)


def _mxfp4(blocks: ByteArray, deviation: float) -> None:
    """Scales are powers of two: the one in reach, or half of it."""
    wanted = deviation / (_rms(MXFP4_VALUES) * _rms((1, 0.5)))
    exponent = 128 + round(float(np.log2(wanted)))
    blocks[:, 0] = exponent - (blocks[:, 0] & 1)


_SQRT_3: Final = 3**0.5


def _f32(blocks: ByteArray, deviation: float) -> None:
    numbers = blocks.reshape(-1).view("<i4") * np.float32(_SQRT_3 * deviation / 2**31)
    blocks[:] = numbers.astype("<f4").view(np.uint8).reshape(blocks.shape)


def _f16(blocks: ByteArray, deviation: float) -> None:
    numbers = blocks.reshape(-1).view("<i2") * np.float32(_SQRT_3 * deviation / 2**15)
    blocks[:] = numbers.astype("<f2").view(np.uint8).reshape(blocks.shape)


def _bf16(blocks: ByteArray, deviation: float) -> None:
    numbers = blocks.reshape(-1).view("<i2") * np.float32(_SQRT_3 * deviation / 2**15)
    blocks[:] = numbers.astype("<f4").view(np.uint8).reshape(-1, 4)[:, 2:]


FILLS: Final = MappingProxyType(
    {
        "F32": _f32,
        "F16": _f16,
        "BF16": _bf16,
        "Q4_0": _signed(0, range(-8, 8)),
        "Q5_0": _signed(0, range(-16, 16)),
        "Q8_0": _q8_0,
        "IQ4_NL": _signed(0, IQ4_VALUES),
        "Q4_1": _centred(16),
        "Q5_1": _centred(32),
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _six_bit_pairs(16),
        "Q5_K": _six_bit_pairs(32),
        "Q6_K": _q6_k,
        "IQ4_XS": _iq4_xs,
        "MXFP4": _mxfp4,
    }
)
"""How to make valid blocks of each format."""

"""Dequantisers of the GGUF block formats: the truth that kernels are compared with.

Every public function takes uint8 [..., n * bytes of a block] and returns float32
[..., n * numbers of a block]. The order of float32 operations is part of the definition: results
are equal to ggml's reference, bit for bit. Source: the block layouts of ggml and of the OCP
microscaling specification (MXFP4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
Decoder = Callable[[ByteArray, FloatArray], None]

# Blocks are decoded in pieces of this many numbers, so that every pass finds them in the cache.
_PIECE: Final = 1 << 16

IQ4_VALUES: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
MXFP4_VALUES: Final = np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32
)
"""Four-bit floats, doubled; the scale is halved in return."""

_EXPONENTS: Final = np.arange(256, dtype=np.uint32)
MXFP4_SCALES: Final = (
    np.where(_EXPONENTS < 2, 0x00200000 << (_EXPONENTS & 1), (_EXPONENTS - 1) << 23)
    .astype(np.uint32)
    .view(np.float32)
)
"""Half of the power of two that a scale byte stands for; the first two are subnormal."""

_FOUR_SHIFTS: Final = np.array([0, 2, 4, 6], np.uint8)[:, None]
_EIGHT_SHIFTS: Final = np.arange(8, dtype=np.uint8)[:, None]


def _decode(data: ByteArray, block: int, size: int, decoder: Decoder) -> FloatArray:
    """Run ``decoder(blocks [n, size], out [n, block])`` over ``data`` piece by piece."""
    blocks = data.reshape(-1, size)
    out = np.empty((blocks.shape[0], block), np.float32)
    step = max(1, _PIECE // block)
    with np.errstate(all="ignore"):
        for start in range(0, blocks.shape[0], step):
            decoder(blocks[start : start + step], out[start : start + step])
    return out.reshape(*data.shape[:-1], data.shape[-1] // size * block)


def _half(blocks: ByteArray, start: int) -> FloatArray:
    """The float16 at byte ``start`` of every block, float32 [n, 1]."""
    return blocks[:, start : start + 2].view("<f2").astype(np.float32)


def _nibbles(packed: ByteArray, out: FloatArray) -> None:
    """Low nibbles into the first half of ``out`` [..., 2m], high ones into the second."""
    half = packed.shape[-1]
    out[..., :half] = packed & 15
    out[..., half:] = packed >> 4


def _add_fifth_bit(blocks: ByteArray, start: int, out: FloatArray) -> None:
    """Add 16 where the bit of the element is set in the four bytes at ``start``."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    out += bits << 4


# -- plain numbers --------------------------------------------------------------------------------


def dequantize_f32(data: ByteArray) -> FloatArray:
    return np.ascontiguousarray(data).view("<f4").astype(np.float32)


def dequantize_f16(data: ByteArray) -> FloatArray:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def dequantize_bf16(data: ByteArray) -> FloatArray:
    bits = np.ascontiguousarray(data).view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


# -- blocks of 32 with one scale ------------------------------------------------------------------


def dequantize_q4_0(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _nibbles(blocks[:, 2:18], out)
        out -= 8
        out *= _half(blocks, 0)

    return _decode(data, 32, 18, decoder)


def dequantize_q4_1(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _nibbles(blocks[:, 4:20], out)
        out *= _half(blocks, 0)
        out += _half(blocks, 2)

    return _decode(data, 32, 20, decoder)


def dequantize_q5_0(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _nibbles(blocks[:, 6:22], out)
        _add_fifth_bit(blocks, 2, out)
        out -= 16
        out *= _half(blocks, 0)

    return _decode(data, 32, 22, decoder)


def dequantize_q5_1(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _nibbles(blocks[:, 8:24], out)
        _add_fifth_bit(blocks, 4, out)
        out *= _half(blocks, 0)
        out += _half(blocks, 2)

    return _decode(data, 32, 24, decoder)


def dequantize_q8_0(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        np.multiply(blocks[:, 2:34].view(np.int8), _half(blocks, 0), out=out)

    return _decode(data, 32, 34, decoder)


def dequantize_iq4_nl(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _lookup(IQ4_VALUES, blocks[:, 2:18], out)
        out *= _half(blocks, 0)

    return _decode(data, 32, 18, decoder)


def dequantize_mxfp4(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _lookup(MXFP4_VALUES, blocks[:, 1:17], out)
        out *= MXFP4_SCALES[blocks[:, :1]]

    return _decode(data, 32, 17, decoder)


def _lookup(values: FloatArray, packed: ByteArray, out: FloatArray) -> None:
    """As :func:`_nibbles`, through a table of sixteen values."""
    half = packed.shape[-1]
    out[..., :half] = values[packed & 15]
    out[..., half:] = values[packed >> 4]


# -- blocks of 256 with quantised scales ----------------------------------------------------------


def unpack_six_bit_pairs(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """Scales and mins of Q4_K and Q5_K: twelve bytes [n, 12] -> two arrays [n, 8], 0..63."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    mins = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)
    return scales, mins


def unpack_six_bit_scales(packed: ByteArray) -> npt.NDArray[np.int8]:
    """Scales of Q3_K: twelve bytes [n, 12] -> int8 [n, 16], -32..31."""
    low = np.concatenate((packed[:, :8] & 15, packed[:, :8] >> 4), axis=1)
    high = (packed[:, None, 8:12] >> _FOUR_SHIFTS) & 3
    codes: ByteArray = low | (high.reshape(-1, 16) << 4)
    return codes.view(np.int8) - np.int8(32)


def dequantize_q2_k(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        scales = _half(blocks, 80) * (blocks[:, :16] & 15)
        mins = _half(blocks, 82) * (blocks[:, :16] >> 4)
        _two_bits(blocks[:, 16:80], out)
        groups = out.reshape(-1, 16, 16)
        groups *= scales[:, :, None]
        groups -= mins[:, :, None]

    return _decode(data, 256, 84, decoder)


def dequantize_q3_k(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        scales = _half(blocks, 108) * unpack_six_bit_scales(blocks[:, 96:108])
        _two_bits(blocks[:, 32:96], out)
        # The high bit is inverted: 0 subtracts four.
        missing = (~blocks[:, None, :32] >> _EIGHT_SHIFTS) & 1
        out -= (missing << 2).reshape(-1, 256)
        groups = out.reshape(-1, 16, 16)
        groups *= scales[:, :, None]

    return _decode(data, 256, 110, decoder)


def dequantize_q4_k(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _nibbles(blocks[:, 16:144].reshape(-1, 4, 32), out.reshape(-1, 4, 64))
        _scale_and_shift(blocks, out)

    return _decode(data, 256, 144, decoder)


def dequantize_q5_k(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        _nibbles(blocks[:, 48:176].reshape(-1, 4, 32), out.reshape(-1, 4, 64))
        high = (blocks[:, None, 16:48] >> _EIGHT_SHIFTS) & 1
        out += (high << 4).reshape(-1, 256)
        _scale_and_shift(blocks, out)

    return _decode(data, 256, 176, decoder)


def dequantize_q6_k(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
        _nibbles(blocks[:, :128].reshape(-1, 2, 64), out.reshape(-1, 2, 128))
        high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _FOUR_SHIFTS) & 3
        out += (high << 4).reshape(-1, 256)
        out -= 32
        groups = out.reshape(-1, 16, 16)
        groups *= scales[:, :, None]

    return _decode(data, 256, 210, decoder)


def dequantize_iq4_xs(data: ByteArray) -> FloatArray:
    def decoder(blocks: ByteArray, out: FloatArray) -> None:
        low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(-1, 8)
        high = (blocks[:, 2:4, None] >> _FOUR_SHIFTS.T) & 3
        codes: ByteArray = low | (high.reshape(-1, 8) << 4)
        scales = _half(blocks, 0) * (codes.view(np.int8) - np.int8(32))
        groups = out.reshape(-1, 8, 32)
        _lookup(IQ4_VALUES, blocks[:, 8:136].reshape(-1, 8, 16), groups)
        groups *= scales[:, :, None]

    return _decode(data, 256, 136, decoder)


def _two_bits(packed: ByteArray, out: FloatArray) -> None:
    """Two halves of 128, each four planes of 32 in the bit pairs of its 32 bytes."""
    planes = (packed.reshape(-1, 2, 1, 32) >> _FOUR_SHIFTS) & 3
    out[:] = planes.reshape(-1, 256)


def _scale_and_shift(blocks: ByteArray, out: FloatArray) -> None:
    """Eight groups of 32: times their scale, minus their minimum."""
    scales, mins = unpack_six_bit_pairs(blocks[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    groups *= (_half(blocks, 0) * scales)[:, :, None]
    groups -= (_half(blocks, 2) * mins)[:, :, None]

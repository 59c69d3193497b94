"""Encoders of the K-quants: blocks of 256 in groups whose scales are quantised too.

Same contract as ``kinfolk.quant.encode``. The scales are found by ``signed_search`` and
``ranged_search``; the layouts are those that ``kinfolk.quant.reference`` reads.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kinfolk.quant.encode import ByteArray, FloatArray, Numbers, search_blocks
from kinfolk.quant.ranged_search import Ranged, RangedFit, ridge, search_ranged, square
from kinfolk.quant.signed_search import Signed, search_signed

_Q2_K: Final = Ranged(3, 15, ranges=(1.0, 0.9, 0.8, 0.7), neighbours=square(1))
_Q4_K: Final = Ranged(15, 63, ranges=(1.0, 0.96, 0.92, 0.86), neighbours=square(1))
_Q5_K: Final = Ranged(
    31, 63, ranges=(1.0, 0.98, 0.96, 0.93), neighbours=ridge(2), stretches=(0.98, 1.02)
)
_Q3_K: Final = Signed(
    -4,
    3,
    -32,
    31,
    shrink=(0.85, 0.9, 0.95, 1.0, 1.06, 1.13, 1.21, 1.3, 1.42, 1.6, 1.8),
    divisors=(1.0, 0.95, 0.9, 1.05),
    mirrored=True,
)
_Q6_K: Final = Signed(
    -32,
    31,
    -128,
    127,
    shrink=(0.985, 1.0, 1.015, 1.03, 1.045, 1.06, 1.08, 1.1),
    divisors=(1.0, 0.98),
    mirrored=False,
)

_LOW: Final = np.uint8(15)
_FOUR: Final = np.uint8(4)
_FOUR_SHIFTS: Final = np.array([0, 2, 4, 6], np.uint8)[:, None]


def quantize_q2_k(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        fit = search_ranged(blocks.reshape(-1, 16, 16), _Q2_K)
        out[:, :16] = _bytes(fit.scales) | (_bytes(fit.minima) << 4)
        out[:, 16:80] = _two_bits(_bytes(fit.codes))
        out[:, 80:82] = _half(fit.d)
        out[:, 82:84] = _half(fit.dmin)

    return search_blocks(numbers, 256, 84, "Q2_K", encoder, _Q2_K.reach)


def quantize_q3_k(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        fit = search_signed(blocks.reshape(-1, 16, 16), _Q3_K)
        codes = _bytes(fit.codes + 4)
        high = (codes >> 2).reshape(-1, 8, 32)
        out[:, :32] = np.packbits(high, axis=1, bitorder="little").reshape(-1, 32)
        out[:, 32:96] = _two_bits(codes & np.uint8(3))
        out[:, 96:108] = _pack_six_bit_scales(_bytes(fit.scales + 32))
        out[:, 108:110] = _half(fit.d)

    return search_blocks(numbers, 256, 110, "Q3_K", encoder, _Q3_K.reach)


def quantize_q4_k(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        fit = search_ranged(blocks.reshape(-1, 8, 32), _Q4_K)
        _store_header(out, fit)
        out[:, 16:144] = _nibbles(_bytes(fit.codes).reshape(-1, 4, 64))

    return search_blocks(numbers, 256, 144, "Q4_K", encoder, _Q4_K.reach)


def quantize_q5_k(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        fit = search_ranged(blocks.reshape(-1, 8, 32), _Q5_K)
        codes = _bytes(fit.codes)
        _store_header(out, fit)
        out[:, 16:48] = np.packbits(codes >> _FOUR, axis=1, bitorder="little").reshape(-1, 32)
        out[:, 48:176] = _nibbles(codes.reshape(-1, 4, 64) & _LOW)

    return search_blocks(numbers, 256, 176, "Q5_K", encoder, _Q5_K.reach)


def quantize_q6_k(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        fit = search_signed(blocks.reshape(-1, 16, 16), _Q6_K)
        codes = _bytes(fit.codes + 32)
        out[:, :128] = _nibbles(codes.reshape(-1, 2, 128) & _LOW)
        out[:, 128:192] = _two_bits(codes >> _FOUR)
        out[:, 192:208] = fit.scales.astype(np.int8).view(np.uint8)
        out[:, 208:210] = _half(fit.d)

    return search_blocks(numbers, 256, 210, "Q6_K", encoder, _Q6_K.reach)


# -- packing --------------------------------------------------------------------------------------


def _bytes(values: FloatArray) -> ByteArray:
    """Whole numbers 0..255 in float32 as bytes."""
    return values.astype(np.uint8)


def _half(values: FloatArray) -> ByteArray:
    """[n] -> the two bytes of each as float16, [n, 2]."""
    return values.astype("<f2")[:, None].view(np.uint8)


def _two_bits(codes: ByteArray) -> ByteArray:
    """Codes 0..3 of 256 numbers -> [n, 64]: in each half of 128, four planes of 32."""
    planes: npt.NDArray[np.uint8] = codes.reshape(-1, 2, 4, 32) << _FOUR_SHIFTS
    packed: ByteArray = np.bitwise_or.reduce(planes, axis=2)
    return packed.reshape(-1, 64)


def _nibbles(codes: ByteArray) -> ByteArray:
    """Codes 0..15 [n, groups, 2m] -> [n, groups * m]: first halves low, second halves high."""
    half = codes.shape[2] // 2
    packed = codes[:, :, :half] | (codes[:, :, half:] << _FOUR)
    return packed.reshape(codes.shape[0], -1)


def _store_header(out: ByteArray, fit: RangedFit) -> None:
    """``d``, ``dmin`` and eight six-bit pairs, the first sixteen bytes of Q4_K and Q5_K."""
    out[:, 0:2] = _half(fit.d)
    out[:, 2:4] = _half(fit.dmin)
    scales, minima = _bytes(fit.scales), _bytes(fit.minima)
    out[:, 4:8] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    out[:, 8:12] = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    out[:, 12:16] = (scales[:, 4:] & _LOW) | (minima[:, 4:] << 4)


def _pack_six_bit_scales(codes: ByteArray) -> ByteArray:
    """Sixteen scales 0..63 -> twelve bytes: eight of nibbles, four of the upper bit pairs."""
    low = (codes[:, :8] & _LOW) | (codes[:, 8:] << 4)
    planes = (codes >> _FOUR).reshape(-1, 4, 4) << _FOUR_SHIFTS
    return np.concatenate((low, np.bitwise_or.reduce(planes, axis=1)), axis=1)

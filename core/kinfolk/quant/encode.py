"""Encoders of plain numbers and of the blocks of 32 with one scale.

Every public function takes numbers [..., n * numbers of a block] of any float type and returns
uint8 [..., n * bytes of a block]. Except for IQ4_NL the result is defined by ggml's reference
quantisers and equal to theirs, byte for byte. Raises :class:`ModelFormatError` for rows that do
not divide into blocks and for numbers that the format cannot hold; infinities and NaN go into plain
numbers only. What is too small for the least scale becomes zero, or close to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kinfolk.errors import ModelFormatError
from kinfolk.quant.least_squares import HALF_LEAST, HALF_MAX, as_half, dot, nearest_half, quotient
from kinfolk.quant.reference import IQ4_VALUES

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.floating[Any]]
Encoder = Callable[[FloatArray, ByteArray], None]

_BF16_MAX: Final = float(np.uint32(0x7F7F0000).view(np.float32))

# Numbers encoded at a time, so that the many passes of a search stay in the cache.
_PIECE: Final = 1 << 15

# For twice a number in units of the scale, rounded: the code of the nearest IQ4 value.
_IQ4_REACH: Final = 256
_IQ4_CODES: Final = (
    np.abs(np.arange(-_IQ4_REACH, _IQ4_REACH + 1)[:, None] - 2 * IQ4_VALUES[None, :])
    .argmin(axis=1)
    .astype(np.uint8)
)
_IQ4_STARTS: Final = tuple(float(start) for start in np.linspace(0.82, 1.12, 16))


def encode_blocks(
    numbers: Numbers, block: int, size: int, name: str, encoder: Encoder, reach: float
) -> ByteArray:
    """Run ``encoder(numbers [n, block], out [n, size])`` over ``numbers`` piece by piece.

    Every block can hold numbers up to ``reach`` times the largest scale, of either sign.
    """
    if numbers.shape[-1] % block:
        raise ModelFormatError(
            f"rows of {numbers.shape[-1]} numbers do not divide into the blocks of {block} that "
            f"{name} needs; choose another format for this tensor"
        )
    blocks = numbers.reshape(-1, block)
    out = np.empty((blocks.shape[0], size), np.uint8)
    step = max(1, _PIECE // block)
    for start in range(0, blocks.shape[0], step):
        with np.errstate(over="ignore"):
            piece = np.ascontiguousarray(blocks[start : start + step], np.float32)
        _refuse_beyond(piece, reach, name)
        encoder(piece, out[start : start + step])
    return out.reshape(*numbers.shape[:-1], numbers.shape[-1] // block * size)


def search_blocks(
    numbers: Numbers, block: int, size: int, name: str, encoder: Encoder, reach: float
) -> ByteArray:
    """As :func:`encode_blocks`, for an encoder that searches scales.

    Numbers below half of the least scale become zeros first: nothing is closer to them, and their
    squares and inverses are beyond float32.
    """

    def run(blocks: FloatArray, out: ByteArray) -> None:
        encoder(np.where(np.abs(blocks) < HALF_LEAST / 2, np.float32(0), blocks), out)

    return encode_blocks(numbers, block, size, name, run, reach)


def _refuse_beyond(numbers: FloatArray, reach: float, name: str, what: str = "a number") -> None:
    sizes = np.abs(numbers)
    largest = sizes.max(initial=0)
    if not np.isfinite(largest):
        raise ModelFormatError(f"a number is infinite or NaN, which {name} cannot hold")
    limit = reach * float(HALF_MAX)
    if largest > limit:
        outlier = numbers.reshape(-1)[sizes.argmax()]
        raise ModelFormatError(
            f"{what} is {outlier:g}, and {limit:g} the largest that {name} holds in every block; "
            "choose BF16 or F32 for this tensor"
        )


# -- plain numbers --------------------------------------------------------------------------------


def quantize_f32(numbers: Numbers) -> ByteArray:
    with np.errstate(over="ignore"):
        singles = np.ascontiguousarray(numbers, "<f4")
    _refuse_rounding_to_infinity(numbers, singles, float(np.finfo(np.float32).max), "F32")
    return singles.view(np.uint8)


def quantize_f16(numbers: Numbers) -> ByteArray:
    with np.errstate(over="ignore"):
        halves = np.ascontiguousarray(numbers, "<f2")
    _refuse_rounding_to_infinity(numbers, halves, float(HALF_MAX), "F16", "; choose BF16 or F32")
    return halves.view(np.uint8)


def quantize_bf16(numbers: Numbers) -> ByteArray:
    """Rounds to the nearest, ties to even; a NaN stays one."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(numbers, "<f4").view("<u4")
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    singles = (rounded << 16).view("<f4")
    _refuse_rounding_to_infinity(numbers, singles, _BF16_MAX, "BF16", "; choose F32")
    quiet = (bits >> 16) | np.uint32(64)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, quiet, rounded).astype("<u2").view(np.uint8)


def _refuse_rounding_to_infinity(
    numbers: Numbers, rounded: Numbers, limit: float, name: str, instead: str = ""
) -> None:
    lost = np.isinf(rounded)
    if lost.any() and np.isfinite(numbers[lost]).any():
        raise ModelFormatError(
            f"a number is beyond {limit:g}, the largest that {name} holds{instead}"
        )


# -- blocks of 32 with one scale ------------------------------------------------------------------


def quantize_q8_0(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
        _store_half(out, 0, d)
        scaled = blocks * _inverse(d)
        # Halves are rounded away from zero.
        whole = np.trunc(scaled)
        whole += np.trunc(2 * (scaled - whole))
        out[:, 2:] = whole.astype(np.int8).view(np.uint8)

    return encode_blocks(numbers, 32, 34, "Q8_0", encoder, 127)


def quantize_q4_0(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        d = _peak(blocks) / np.float32(-8)
        _store_half(out, 0, d)
        _store_nibbles(out, 2, _codes(blocks * _inverse(d), 8.5, 15))

    return encode_blocks(numbers, 32, 18, "Q4_0", encoder, 8)


def quantize_q4_1(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        low, d = _low_and_step(blocks, 15, "Q4_1")
        _store_half(out, 0, d)
        _store_half(out, 2, low)
        _store_nibbles(out, 4, _codes((blocks - low) * _inverse(d), 0.5, 15))

    return encode_blocks(numbers, 32, 20, "Q4_1", encoder, 14)


def quantize_q5_0(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        d = _peak(blocks) / np.float32(-16)
        _store_half(out, 0, d)
        _store_five_bits(out, 2, _codes(blocks * _inverse(d), 16.5, 31))

    return encode_blocks(numbers, 32, 22, "Q5_0", encoder, 16)


def quantize_q5_1(numbers: Numbers) -> ByteArray:
    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        low, d = _low_and_step(blocks, 31, "Q5_1")
        _store_half(out, 0, d)
        _store_half(out, 2, low)
        _store_five_bits(out, 4, _codes((blocks - low) * _inverse(d), 0.5, 31))

    return encode_blocks(numbers, 32, 24, "Q5_1", encoder, 30)


def quantize_iq4_nl(numbers: Numbers) -> ByteArray:
    """Sixteen uneven levels: the scale with the least squared error among several starts."""

    def encoder(blocks: FloatArray, out: ByteArray) -> None:
        best = np.zeros((blocks.shape[0], 1), np.float32)
        d = np.zeros_like(best)
        reach = _inverse(_peak(blocks)) * IQ4_VALUES[0]
        for start in _IQ4_STARTS:
            for sign in (1, -1):
                levels = IQ4_VALUES[_iq4_codes(blocks * (reach * np.float32(sign * start)))]
                product = dot(blocks, levels)[:, None]
                scale = quotient(product, dot(levels, levels)[:, None])
                better = product * scale > best
                best = np.where(better, product * scale, best)
                d = np.where(better, scale, d)
        near, away = nearest_half(d), as_half(d)
        d = np.where(_iq4_errors(blocks, near) <= _iq4_errors(blocks, away), near, away)
        _store_half(out, 0, d)
        _store_nibbles(out, 2, _iq4_codes(blocks * _inverse(d)))

    return search_blocks(numbers, 32, 18, "IQ4_NL", encoder, float(IQ4_VALUES[-1]))


def _iq4_errors(blocks: FloatArray, d: FloatArray) -> FloatArray:
    """Squared error of every block with the scale [n, 1]."""
    residual = IQ4_VALUES[_iq4_codes(blocks * _inverse(d))] * d - blocks
    return dot(residual, residual)[:, None]


def _iq4_codes(scaled: FloatArray) -> ByteArray:
    doubled = np.rint(2 * np.clip(scaled, -_IQ4_REACH / 2, _IQ4_REACH / 2)).astype(np.int32)
    codes: ByteArray = _IQ4_CODES[doubled + _IQ4_REACH]
    return codes


# -- storing --------------------------------------------------------------------------------------


def _store_half(out: ByteArray, start: int, values: FloatArray) -> None:
    """``values`` [n, 1] as float16 at byte ``start`` of every block."""
    out[:, start : start + 2] = values.astype("<f2").view(np.uint8)


def _store_nibbles(out: ByteArray, start: int, codes: ByteArray) -> None:
    """The first half of ``codes`` [n, 32] into low nibbles, the second into high ones."""
    half = codes.shape[1] // 2
    out[:, start : start + half] = (codes[:, :half] & 15) | (codes[:, half:] << 4)


def _store_five_bits(out: ByteArray, start: int, codes: ByteArray) -> None:
    """The fifth bits as four bytes, then nibbles."""
    out[:, start : start + 4] = np.packbits(codes >> 4, axis=1, bitorder="little")
    _store_nibbles(out, start + 4, codes)


def _peak(blocks: FloatArray) -> FloatArray:
    """The number of largest magnitude, with its sign, [n, 1]."""
    return np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)


def _low_and_step(blocks: FloatArray, steps: int, name: str) -> tuple[FloatArray, FloatArray]:
    low = blocks.min(axis=1, keepdims=True)
    _refuse_beyond(low, 1, name, "the least number of a block")
    return low, (blocks.max(axis=1, keepdims=True) - low) / np.float32(steps)


def _inverse(values: FloatArray) -> FloatArray:
    """0 also where the inverse is beyond float32: such scales are stored as 0."""
    with np.errstate(over="ignore"):
        inverses = quotient(np.ones_like(values), values)
    inverses[np.isinf(inverses)] = 0
    return inverses


def _codes(scaled: FloatArray, shift: float, high: int) -> ByteArray:
    codes: FloatArray = np.minimum(np.trunc(scaled + np.float32(shift)), np.float32(high))
    return codes.astype(np.uint8)

"""Finds the scales of K-quants that store ``d * scale * code``, one whole ``scale`` a group.

Given the scales, the best codes are the nearest ones, so the search is over scales only: fit every
group freely (several starting scales, each refined by least squares), take ``d`` from the largest
fit, then try the neighbouring whole scales with the squared error they really have. Arrays are
[n blocks, groups, size].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kinfolk.quant.least_squares import FloatArray, as_half, dot, nearest, quotient


@dataclass(frozen=True, slots=True)
class Signed:
    """Codes ``low..high`` and scales ``scale_low..scale_high``.

    ``shrink`` are the starting scales as fractions of the one that just reaches the largest
    number; ``mirrored`` tries both signs of it. ``divisors`` are the fractions of the scale range
    that the largest group may take.
    """

    low: int
    high: int
    scale_low: int
    scale_high: int
    shrink: tuple[float, ...]
    divisors: tuple[float, ...]
    mirrored: bool

    @property
    def reach(self) -> int:
        """What a group holds on either side, in units of ``d``."""
        return -self.scale_low * self.high


class SignedFit(NamedTuple):
    """``d`` [n], ``scales`` [n, groups], ``codes`` [n, groups, size]: whole numbers in float32."""

    d: FloatArray
    scales: FloatArray
    codes: FloatArray


def search_signed(numbers: FloatArray, kind: Signed) -> SignedFit:
    free = _free_scales(numbers, kind)
    largest = np.take_along_axis(free, np.abs(free).argmax(-1, keepdims=True), -1)
    best = np.full(numbers.shape[0], np.inf, np.float32)
    d = np.zeros_like(best)
    scales = np.zeros_like(free)
    for divisor in kind.divisors:
        candidate = as_half(largest / np.float32(kind.scale_low * divisor))
        candidates, errors = _signed_neighbours(numbers, free, candidate, kind)
        total = errors.sum(-1)
        better = total < best
        best = np.where(better, total, best)
        d = np.where(better, candidate[:, 0], d)
        scales = np.where(better[:, None], candidates, scales)
    return SignedFit(d, scales, _signed_codes(numbers, d[:, None] * scales, kind))


def _free_scales(numbers: FloatArray, kind: Signed) -> FloatArray:
    """The best real scale of every group [n, groups], by least squares from every start."""
    peak = np.take_along_axis(numbers, np.abs(numbers).argmax(-1, keepdims=True), -1)[..., 0]
    reach = quotient(np.full_like(peak, kind.low), peak)
    best = np.zeros_like(peak)
    scales = np.zeros_like(peak)
    for sign in (1, -1) if kind.mirrored else (1,):
        for fraction in kind.shrink:
            inverse = reach * np.float32(sign / fraction)
            codes = nearest(numbers * inverse[..., None], kind.low, kind.high)
            product = dot(numbers, codes)
            scale = quotient(product, dot(codes, codes))
            gain = product * scale
            better = gain > best
            best = np.where(better, gain, best)
            scales = np.where(better, scale, scales)
    return scales


def _signed_codes(numbers: FloatArray, scales: FloatArray, kind: Signed) -> FloatArray:
    inverse = quotient(np.ones_like(scales), scales)
    return nearest(numbers * inverse[..., None], kind.low, kind.high)


def _signed_neighbours(
    numbers: FloatArray, free: FloatArray, d: FloatArray, kind: Signed
) -> tuple[FloatArray, FloatArray]:
    """The best whole scales near ``free / d``, and the squared error of every group."""
    centre = np.rint(quotient(free, d))
    best = np.full(free.shape, np.inf, np.float32)
    scales = np.zeros_like(free)
    for step in (0, -1, 1):
        candidate = np.clip(centre + np.float32(step), kind.scale_low, kind.scale_high)
        residual = _signed_codes(numbers, candidate * d, kind)
        residual *= (candidate * d)[..., None]
        residual -= numbers
        errors = dot(residual, residual)
        better = errors < best
        best = np.where(better, errors, best)
        scales = np.where(better, candidate, scales)
    return scales, best

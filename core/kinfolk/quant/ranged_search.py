"""Finds the scales of K-quants that store ``d * scale * code - dmin * minimum``.

As for the signed formats, but every group has two numbers to fit, and ``d`` and ``dmin`` are fitted
again by least squares over the whole block once the integers are known. Arrays are
[n blocks, groups, size].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kinfolk.quant.least_squares import FloatArray, as_half, dot, nearest, quotient


@dataclass(frozen=True, slots=True)
class Ranged:
    """Codes ``0..high``, scales and minima ``0..scale_high``.

    ``ranges`` are the starting widths as fractions of a group's width, ``neighbours`` the steps of
    (scale, minimum) that are tried, ``stretches`` the factors on ``d`` and ``dmin`` tried at last.
    """

    high: int
    scale_high: int
    ranges: tuple[float, ...]
    neighbours: tuple[tuple[int, int], ...]
    stretches: tuple[float, ...] = ()

    @property
    def reach(self) -> int:
        """What a group holds below zero, in units of ``dmin``; above it holds more."""
        return self.scale_high


class RangedFit(NamedTuple):
    """``d``, ``dmin`` [n], ``scales``, ``minima`` [n, groups], ``codes`` [n, groups, size]."""

    d: FloatArray
    dmin: FloatArray
    scales: FloatArray
    minima: FloatArray
    codes: FloatArray


class _Ranges(NamedTuple):
    """The numbers and the sums of them that every trial needs, [n, groups]."""

    numbers: FloatArray
    total: FloatArray
    squares: FloatArray

    @property
    def size(self) -> np.float32:
        return np.float32(self.numbers.shape[-1])

    def codes(self, scale: FloatArray, minimum: FloatArray, high: int) -> FloatArray:
        inverse = quotient(np.ones_like(scale), scale)
        return nearest(self._positions(inverse, minimum), 0, high)

    def errors(self, scale: FloatArray, minimum: FloatArray, high: int) -> FloatArray:
        """Squared error of every group with its nearest codes."""
        inverse = quotient(np.ones_like(scale), scale)
        positions = self._positions(inverse, minimum)
        codes = nearest(positions.copy(), 0, high)
        codes -= positions
        flat = self.squares + minimum * (2 * self.total + self.size * minimum)
        return np.where(scale == 0, flat, scale * scale * dot(codes, codes))

    def _positions(self, inverse: FloatArray, minimum: FloatArray) -> FloatArray:
        positions = self.numbers * inverse[..., None]
        positions += (minimum * inverse)[..., None]
        return positions


class _Trial(NamedTuple):
    """Scales of every block and the squared error [n] they lead to; ``d``, ``dmin`` [n, 1]."""

    d: FloatArray
    dmin: FloatArray
    scales: FloatArray
    minima: FloatArray
    errors: FloatArray

    def better(self, other: _Trial) -> _Trial:
        """Block by block the one with the smaller error."""
        wins = other.errors < self.errors
        column = wins[:, None]
        return _Trial(
            np.where(column, other.d, self.d),
            np.where(column, other.dmin, self.dmin),
            np.where(column, other.scales, self.scales),
            np.where(column, other.minima, self.minima),
            np.where(wins, other.errors, self.errors),
        )


def search_ranged(numbers: FloatArray, kind: Ranged) -> RangedFit:
    groups = _Ranges(numbers, numbers.sum(-1), dot(numbers, numbers))
    scale, minimum = _free_ranges(groups, kind)
    d = as_half(scale.max(-1, keepdims=True) / np.float32(kind.scale_high))
    dmin = as_half(minimum.max(-1, keepdims=True) / np.float32(kind.scale_high))
    best = _neighbours(groups, scale, minimum, d, dmin, kind)
    d, dmin = _refit(groups, best, kind)
    best = best.better(_neighbours(groups, d * best.scales, dmin * best.minima, d, dmin, kind))
    for factor in kind.stretches:
        scale, minimum = best.d * best.scales, best.dmin * best.minima
        d, dmin = (as_half(value * np.float32(factor)) for value in (best.d, best.dmin))
        best = best.better(_neighbours(groups, scale, minimum, d, dmin, kind))
    codes = groups.codes(best.d * best.scales, best.dmin * best.minima, kind.high)
    return RangedFit(best.d[:, 0], best.dmin[:, 0], best.scales, best.minima, codes)


def _free_ranges(groups: _Ranges, kind: Ranged) -> tuple[FloatArray, FloatArray]:
    """The best real scale and minimum of every group; a minimum is never above zero."""
    low = np.minimum(groups.numbers.min(-1), 0)
    width = np.maximum(groups.numbers.max(-1), low) - low
    best = np.full(low.shape, np.inf, np.float32)
    scales, minima = np.zeros_like(low), -low
    for fraction in kind.ranges:
        scale = width * np.float32(fraction / kind.high)
        minimum = np.maximum(-low - width * np.float32((1 - fraction) / 2), 0)
        codes = groups.codes(scale, minimum, kind.high)
        scale, minimum = _least_squares(groups, codes)
        errors = groups.errors(scale, minimum, kind.high)
        better = errors < best
        best = np.where(better, errors, best)
        scales, minima = np.where(better, scale, scales), np.where(better, minimum, minima)
    return scales, minima


def _least_squares(groups: _Ranges, codes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scale and minimum that fit ``scale * codes - minimum`` best, both at least zero."""
    total, squares, product = codes.sum(-1), dot(codes, codes), dot(groups.numbers, codes)
    determinant = groups.size * squares - total * total
    scale = quotient(groups.size * product - groups.total * total, determinant)
    minimum = (scale * total - groups.total) / groups.size
    bound = (minimum < 0) | (scale <= 0)
    scale = np.where(bound, np.maximum(quotient(product, squares), 0), scale)
    return scale, np.where(bound, 0, minimum)


def _neighbours(
    groups: _Ranges,
    scale: FloatArray,
    minimum: FloatArray,
    d: FloatArray,
    dmin: FloatArray,
    kind: Ranged,
) -> _Trial:
    """The best whole scales and minima near the real ones [n, groups]."""
    centre, floor = np.rint(quotient(scale, d)), np.rint(quotient(minimum, dmin))
    best = np.full(scale.shape, np.inf, np.float32)
    scales, minima = np.zeros_like(centre), np.zeros_like(floor)
    for scale_step, minimum_step in kind.neighbours:
        one = np.clip(centre + np.float32(scale_step), 0, kind.scale_high)
        two = np.clip(floor + np.float32(minimum_step), 0, kind.scale_high)
        errors = groups.errors(one * d, two * dmin, kind.high)
        better = errors < best
        best = np.where(better, errors, best)
        scales, minima = np.where(better, one, scales), np.where(better, two, minima)
    return _Trial(d, dmin, scales, minima, best.sum(-1))


def _refit(groups: _Ranges, trial: _Trial, kind: Ranged) -> tuple[FloatArray, FloatArray]:
    """``d`` and ``dmin`` [n, 1] by least squares over the whole block, all integers fixed."""
    scales, minima = trial.scales, trial.minima
    codes = groups.codes(trial.d * scales, trial.dmin * minima, kind.high)
    a = (scales * scales * dot(codes, codes)).sum(-1)
    b = -(scales * codes.sum(-1) * minima).sum(-1)
    c = groups.size * (minima * minima).sum(-1)
    right = (scales * dot(groups.numbers, codes)).sum(-1)
    below = -(groups.total * minima).sum(-1)
    determinant = a * c - b * b
    solvable = determinant > 1e-6 * a * c
    d = np.where(solvable, quotient(c * right - b * below, determinant), quotient(right, a))
    dmin = np.where(solvable, quotient(a * below - b * right, determinant), 0)
    return as_half(np.maximum(d, 0))[:, None], as_half(np.maximum(dmin, 0))[:, None]


def square(reach: int) -> tuple[tuple[int, int], ...]:
    """All steps of at most ``reach`` in both directions, the centre first."""
    steps = range(-reach, reach + 1)
    return _centre_first((i, j) for i in steps for j in steps)


def ridge(reach: int) -> tuple[tuple[int, int], ...]:
    """Steps along the diagonal, where a larger scale and a deeper minimum make up for another."""
    return _centre_first((i, i + j) for i in range(-reach, reach + 1) for j in (-1, 0, 1))


def _centre_first(steps: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(steps, key=lambda step: (abs(step[0]) + abs(step[1]), step)))

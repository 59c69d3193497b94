"""Small numeric pieces of the scale searches, all in float32."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

HALF_MAX: Final = np.float32(65504)
HALF_LEAST: Final = np.float32(2.0**-24)
"""The largest and the least positive number of float16."""

_WIDE: Final = 16
"""Up to this many times the least number, steps are more than six percent wide."""


def quotient(above: FloatArray, below: FloatArray) -> FloatArray:
    """``above / below``, and 0 where ``below`` is 0."""
    out = np.zeros(np.broadcast_shapes(above.shape, below.shape), np.float32)
    return np.divide(above, below, out=out, where=below != 0)


def nearest_half(values: FloatArray) -> FloatArray:
    """Rounded to float16, but never to infinity."""
    return np.clip(values, -HALF_MAX, HALF_MAX).astype(np.float16).astype(np.float32)


def as_half(values: FloatArray) -> FloatArray:
    """Rounded to float16, but never to infinity, and away from zero where steps are wide.

    A scale that is too small by a third, as the nearest may be there, cuts a third off the largest
    numbers of a block; one that is too large costs next to nothing.
    """
    steps = np.ceil(np.abs(values) / HALF_LEAST)
    away = np.copysign(steps * HALF_LEAST, values)
    return np.where(steps <= _WIDE, away, nearest_half(values))


def dot(one: FloatArray, two: FloatArray) -> FloatArray:
    """Inner products over the last axis."""
    return np.asarray(np.einsum("...i,...i->...", one, two), np.float32)


def nearest(values: FloatArray, low: float, high: float) -> FloatArray:
    """The nearest whole numbers in ``low..high``, in place."""
    np.rint(values, out=values)
    np.maximum(values, np.float32(low), out=values)
    return np.minimum(values, np.float32(high), out=values)

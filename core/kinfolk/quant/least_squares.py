"""Small numeric pieces of the scale searches, all in float32."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_HALF_MAX: Final = np.float32(65504)
_HALF_LEAST: Final = np.float32(2.0**-24)


def quotient(above: FloatArray, below: FloatArray) -> FloatArray:
    """``above / below``, and 0 where ``below`` is 0."""
    out = np.zeros(np.broadcast_shapes(above.shape, below.shape), np.float32)
    return np.divide(above, below, out=out, where=below != 0)


def as_half(values: FloatArray) -> FloatArray:
    """Rounded to float16, but never to infinity, nor to zero from something else."""
    rounded = np.clip(values, -_HALF_MAX, _HALF_MAX).astype(np.float16).astype(np.float32)
    lost = (rounded == 0) & (values != 0)
    return np.where(lost, np.copysign(_HALF_LEAST, values), rounded)


def dot(one: FloatArray, two: FloatArray) -> FloatArray:
    """Inner products over the last axis."""
    return np.asarray(np.einsum("...i,...i->...", one, two), np.float32)


def nearest(values: FloatArray, low: float, high: float) -> FloatArray:
    """The nearest whole numbers in ``low..high``, in place."""
    np.rint(values, out=values)
    np.maximum(values, np.float32(low), out=values)
    return np.minimum(values, np.float32(high), out=values)

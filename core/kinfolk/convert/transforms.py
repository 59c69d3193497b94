"""Transforms that several families share."""

from __future__ import annotations

import numpy as np

from kinfolk.convert.plan import FloatArray, Transform

PLUS_ONE = Transform(lambda weight: weight + np.float32(1))
"""For norms that are stored as offsets from one."""


def head_order(groups: int, members: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Indices that turn grouped heads into tiled ones, each head ``size`` wide.

    Grouped: the heads of one group stand side by side. Tiled: head ``m * groups + g`` is member
    ``m`` of group ``g``, the order in which ggml broadcasts a group over its members.
    """
    indices = np.arange(groups * members * size).reshape(groups, members, size)
    return indices.swapaxes(0, 1).reshape(-1)


def tile_rows(groups: int, members: int, size: int = 1, skip: int = 0) -> Transform:
    """Grouped heads along the rows become tiled; the first ``skip`` rows stay in place."""
    if members == 1:
        return Transform(lambda array: array)
    order = np.concatenate((np.arange(skip), head_order(groups, members, size) + skip))
    return Transform(lambda array: array[order], rowwise=False)


def tile_columns(groups: int, members: int, size: int) -> Transform:
    """Grouped heads along the columns of a matrix become tiled."""
    if members == 1:
        return Transform(lambda array: array)
    order = head_order(groups, members, size)
    return Transform(lambda array: array[:, order])


def then(first: Transform, second: Transform) -> Transform:
    """``first``, and ``second`` on its result."""

    def apply(*arrays: FloatArray) -> FloatArray:
        return second.apply(first.apply(*arrays))

    return Transform(apply, first.rowwise and second.rowwise)

"""The op ``linear``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.linear.reference import Matrix, linear
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class LinearArguments:
    """y = x W^T for each of the matrices, which read the same rows.

    ``weights`` [out, in] each, dense or quantised, on ``device``. Operand: x [R, in] in ``dtype``,
    floating point. Result: a tuple of [R, out] in ``dtype``, one for each matrix.
    """

    weights: tuple[Matrix, ...]
    dtype: torch.dtype
    device: torch.device


LINEAR = Op("linear", LinearArguments, linear, capturable=True)

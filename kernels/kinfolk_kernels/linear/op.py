"""The op ``linear``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

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


class Packed(Protocol):
    """A matrix in quantised blocks."""

    @property
    def device(self) -> torch.device: ...
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


Matrix = torch.Tensor | Packed


def linear(arguments: LinearArguments, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """See :class:`LinearArguments`."""
    return tuple(product(x, weight) for weight in arguments.weights)


def product(x: torch.Tensor, weight: Matrix) -> torch.Tensor:
    """x [R, in], weight [out, in] -> [R, out] in the dtype of ``x``."""
    dense = weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)
    return (x.float() @ dense.float().T).to(x.dtype)


LINEAR = Op("linear", LinearArguments, linear, capturable=True)

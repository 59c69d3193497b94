"""Linear layers: matrices, dense or quantised, applied to rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kinfolk.nn.context import BuildContext
from kinfolk_kernels.linear.op import LINEAR, LinearArguments, Matrix


class Linears:
    """Matrices [out, in], dense or quantised, that read the same rows, in one launch on a GPU.

    ``dtype`` is that of the rows, by default the dtype of the model's activations.
    """

    def __init__(
        self, context: BuildContext, weights: Iterable[Matrix], dtype: torch.dtype | None = None
    ) -> None:
        arguments = LinearArguments(tuple(weights), dtype or context.dtype, context.device)
        self._linear = context.ops.bind(LINEAR, arguments)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[R, in] -> [R, out] for each matrix, in the dtype of ``x``."""
        return self._linear(x)


class Linear:
    """y = x W^T with one matrix W [out, in], dense or quantised."""

    def __init__(
        self, context: BuildContext, weight: Matrix, dtype: torch.dtype | None = None
    ) -> None:
        self.weight = weight
        self._linears = Linears(context, (weight,), dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, in] -> [R, out] in the dtype of ``x``."""
        return self._linears(x)[0]

"""Root-mean-square normalisation with its weight."""

from __future__ import annotations

from copy import copy

import torch

from kinfolk.nn.context import BuildContext


class RMSNorm:
    """x / rms(x) * w over the last dimension; ``weight`` ``None`` = 1.

    The result has type ``dtype``, that of the model's activations if it is not given.
    """

    def __init__(
        self,
        context: BuildContext,
        weight: torch.Tensor | None,
        eps: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.ops = context.ops
        self.dtype = dtype or context.dtype
        self.weight = weight
        self.eps = eps

    def with_output_dtype(self, dtype: torch.dtype) -> RMSNorm:
        """The same norm with results of another type."""
        other = copy(self)
        other.dtype = dtype
        return other

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        return self.ops.rms_norm(x, self.weight, self.eps, self.dtype)

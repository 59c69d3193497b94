"""``linear`` by torch's matrix product, in the dtype of the rows."""

from __future__ import annotations

import torch

from kinfolk_kernels.linear.op import LinearArguments, Matrix


def linear(arguments: LinearArguments, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """See :class:`LinearArguments`; quantised matrices are dequantised for the call."""
    return tuple(product(x, weight) for weight in arguments.weights)


def product(x: torch.Tensor, weight: Matrix) -> torch.Tensor:
    """x [R, in], weight [out, in] -> [R, out] in the dtype of ``x``."""
    dense = weight if isinstance(weight, torch.Tensor) else weight.dequantize(x.dtype)
    return torch.nn.functional.linear(x, dense.to(x.dtype))

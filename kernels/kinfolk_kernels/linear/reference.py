"""The reference of ``linear``: products in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.linear.op import LinearArguments


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

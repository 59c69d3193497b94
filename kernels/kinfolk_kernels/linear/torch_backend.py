"""y = x W^T in the type of ``x``, by the vendor's matrix product."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.linear.reference import Packed


def linear(x: torch.Tensor, weight: torch.Tensor | Packed) -> torch.Tensor:
    """x [R, K], weight [N, K] -> [R, N]. Packed weights are unpacked for the call."""
    dense = weight if isinstance(weight, torch.Tensor) else weight.dequantize(x.dtype)
    return torch.nn.functional.linear(x, dense.to(x.dtype))


def linears(x: torch.Tensor, weights: Sequence[torch.Tensor | Packed]) -> tuple[torch.Tensor, ...]:
    """x [R, K], weights [N_i, K] -> [R, N_i] each."""
    return tuple(linear(x, weight) for weight in weights)

"""y = x W^T in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Packed(Protocol):
    """A matrix in quantised blocks."""

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


def linear(x: torch.Tensor, weight: torch.Tensor | Packed) -> torch.Tensor:
    """x [R, K], weight [N, K] -> [R, N] in the type of ``x``."""
    dense = weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)
    return (x.float() @ dense.float().T).to(x.dtype)


def linears(x: torch.Tensor, weights: Sequence[torch.Tensor | Packed]) -> tuple[torch.Tensor, ...]:
    """x [R, K], weights [N_i, K] -> [R, N_i] each: matrices that read the same rows."""
    return tuple(linear(x, weight) for weight in weights)

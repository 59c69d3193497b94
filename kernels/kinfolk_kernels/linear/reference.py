"""y = x W^T in float32."""

from __future__ import annotations

from typing import Protocol

import torch


class Packed(Protocol):
    """A matrix in quantised blocks."""

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


def linear(x: torch.Tensor, weight: torch.Tensor | Packed) -> torch.Tensor:
    """x [R, K], weight [N, K] -> [R, N] in the type of ``x``."""
    dense = weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)
    return (x.float() @ dense.float().T).to(x.dtype)

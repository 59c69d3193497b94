"""The feed-forward experts of a layer, one (row, expert) pair at a time."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from kinfolk_kernels.gelu_mul.reference import gelu_mul
from kinfolk_kernels.silu_mul.reference import silu_mul

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS = {"silu": silu_mul, "gelu_tanh": gelu_mul}


class PackedStack(Protocol):
    """Stacked matrices in quantised blocks; indexing takes one out."""

    def __getitem__(self, index: int) -> PackedStack: ...
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


Stack = torch.Tensor | PackedStack


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate: Stack,
    up: Stack,
    down: Stack,
    bay_of_expert: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:
    """x [R, W], ids int64 [R, K], weights float32 [R, K] -> float32 [R, W].

    ``gate`` and ``up`` [bays, F, W] and ``down`` [bays, W, F] hold the experts in bays;
    ``bay_of_expert`` int64 [E] says where each lies. A row's result is the sum over its experts,
    in the order of ``ids``, of weight * down(act(gate x) * up x). It depends on the row and its
    experts' weights alone, not on bays or on the rows beside it.
    """
    out = torch.zeros(x.shape[0], x.shape[1], device=x.device)
    for row in range(x.shape[0]):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            bay = int(bay_of_expert[expert])
            inner = ACTIVATIONS[activation](
                matrix(gate, bay) @ x[row].float(), matrix(up, bay) @ x[row].float()
            )
            out[row] += weight * (matrix(down, bay) @ inner)
    return out


def matrix(stack: Stack, bay: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One matrix of a stack, as numbers."""
    one = stack[bay]
    return one.to(dtype) if isinstance(one, torch.Tensor) else one.dequantize(dtype)

"""The feed-forward experts of a layer, one (row, expert) pair at a time, and the shared one."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from kinfolk_kernels.act_and_mul.reference import Activation, product
from kinfolk_kernels.linear.reference import product as linear


class PackedStack(Protocol):
    """Stacked matrices in quantised blocks; indexing takes one out."""

    def __getitem__(self, index: int) -> PackedStack: ...
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor: ...


Stack = torch.Tensor | PackedStack


class SharedExpert(NamedTuple):
    """The expert that every row goes to: ``gate`` and ``up`` [F, W], ``down`` [W, F].

    Its result is multiplied with the sigmoid of the product of ``shared_gate`` float32 [W] with the
    row, if there is one.
    """

    gate: Any
    up: Any
    down: Any
    shared_gate: torch.Tensor | None = None


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate: Stack,
    up: Stack,
    down: Stack,
    bay_of_expert: torch.Tensor,
    activation: Activation,
    shared: SharedExpert | None,
) -> torch.Tensor:
    """x [R, W], ids int64 [R, K], weights float32 [R, K] -> float32 [R, W].

    ``gate`` and ``up`` [bays, F, W] and ``down`` [bays, W, F] hold the experts in bays;
    ``bay_of_expert`` int64 [E] says where each lies. A row's result is the sum over its experts,
    in the order of ``ids``, of weight * down(act(gate x) * up x), plus the ``shared`` one's. It
    depends on the row and its experts' weights alone, not on bays or on the rows beside it.
    """
    out = torch.zeros(x.shape[0], x.shape[1], device=x.device)
    for row in range(x.shape[0]):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            bay = int(bay_of_expert[expert])
            inner = product(
                activation, matrix(gate, bay) @ x[row].float(), matrix(up, bay) @ x[row].float()
            )
            out[row] += weight * (matrix(down, bay) @ inner)
    if shared is None:
        return out
    wide = x.float()
    inner = product(activation, linear(wide, shared.gate), linear(wide, shared.up))
    return add_shared(out, linear(inner, shared.down), x, shared.shared_gate)


def add_shared(
    routed: torch.Tensor, shared: torch.Tensor, x: torch.Tensor, shared_gate: torch.Tensor | None
) -> torch.Tensor:
    """routed float32, shared and x [R, W] -> float32 [R, W]: the result of the shared expert is
    added, times the sigmoid of the product of ``shared_gate`` with the row of ``x``."""
    added = shared.float()
    if shared_gate is not None:
        added = added * (x.float() * shared_gate).sum(1, keepdim=True).sigmoid()
    return routed + added


def matrix(stack: Stack, bay: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One matrix of a stack, as numbers."""
    one = stack[bay]
    return one.to(dtype) if isinstance(one, torch.Tensor) else one.dequantize(dtype)

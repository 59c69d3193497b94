"""The reference of ``experts``: one (row, expert) pair at a time, and the shared expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch

from kinfolk_kernels.act_and_mul.reference import product
from kinfolk_kernels.linear.reference import Packed
from kinfolk_kernels.linear.reference import product as linear

if TYPE_CHECKING:
    from kinfolk_kernels.experts.op import ExpertsArguments


class PackedStack(Protocol):
    """Stacked matrices in quantised blocks; indexing returns one matrix."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __getitem__(self, index: int, /) -> Packed: ...


Stack = torch.Tensor | PackedStack
S = TypeVar("S", bound=Stack)
"""The kind of stack that a back end reads."""


class SharedExpert(NamedTuple):
    """The expert that every row uses: ``gate`` and ``up`` [F, W], ``down`` [W, F].

    With a ``shared_gate`` float32 [W], its result is multiplied by sigmoid(shared_gate . x).
    """

    gate: Any
    up: Any
    down: Any
    shared_gate: torch.Tensor | None = None


def experts(
    arguments: ExpertsArguments[Stack], x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """See :class:`ExpertsArguments`."""
    activation = arguments.activation
    out = torch.zeros(x.shape[0], x.shape[1], device=x.device)
    for row in range(x.shape[0]):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            bay = int(arguments.bay_of_expert[expert])
            stacks = (arguments.gate, arguments.up, arguments.down)
            gate, up, down = (matrix(stack, bay) for stack in stacks)
            inner = product(activation, gate @ x[row].float(), up @ x[row].float())
            out[row] += weight * (down @ inner)
    shared = arguments.shared
    if shared is None:
        return out
    wide = x.float()
    inner = product(activation, linear(wide, shared.gate), linear(wide, shared.up))
    return add_shared(out, linear(inner, shared.down), x, shared.shared_gate)


def add_shared(
    routed: torch.Tensor, shared: torch.Tensor, x: torch.Tensor, shared_gate: torch.Tensor | None
) -> torch.Tensor:
    """routed float32, shared and x [R, W] -> float32 [R, W]: routed + sigmoid(shared_gate . x) *
    shared, or routed + shared without a gate."""
    added = shared.float()
    if shared_gate is not None:
        added = added * (x.float() * shared_gate).sum(1, keepdim=True).sigmoid()
    return routed + added


def matrix(stack: Stack, bay: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One matrix of a stack, dequantised to ``dtype``."""
    one = stack[bay]
    return one.to(dtype) if isinstance(one, torch.Tensor) else one.dequantize(dtype)

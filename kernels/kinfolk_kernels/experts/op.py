"""The op ``experts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from kinfolk_kernels.act_and_mul.op import Activation, product
from kinfolk_kernels.linear.op import Packed
from kinfolk_kernels.linear.op import product as linear
from kinfolk_kernels.op import Op


class PackedStack(Protocol):
    """Stacked matrices in quantised blocks; indexing returns one matrix."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __getitem__(self, index: int, /) -> Packed: ...


Stack = torch.Tensor | PackedStack
S = TypeVar("S", bound=Stack)
"""The kind of stack that a back end reads."""


@dataclass(frozen=True, slots=True)
class ExpertsArguments(Generic[S]):
    """The feed-forward experts of a layer: a row's result is the sum over its experts, in the order
    of its ids, of weight * down(activation(gate x) * up x), plus that of the ``shared`` expert.

    ``gate`` and ``up`` [N, F, W] and ``down`` [N, W, F] hold the experts in the N near bays, dense
    or quantised. ``bay_of_expert`` int64 [E] is the bay of each: a near one below N, the far bay
    N + i, which is matrix i of the stacks ``far``, or -1 for an expert that is absent and adds
    nothing. Operands: x [R, W] in ``dtype``, and the result of :class:`RouteArguments`: ids int64
    [R, top_k] and weights float32 [R, top_k]. Result: float32 [R, W]. It depends only on the row
    and on its experts' weights, not on bays or on other rows. ``rows`` int32 [1]: rows from this
    one on are padding; no expert is read for them, and their routed sum is zero.
    """

    gate: S
    up: S
    down: S
    bay_of_expert: torch.Tensor
    activation: Activation
    top_k: int
    dtype: torch.dtype
    shared: SharedExpert | None = None
    far: FarExperts[S] | None = None
    rows: torch.Tensor | None = None

    @property
    def near(self) -> int:
        """N."""
        return int(self.gate.shape[0])

    @property
    def count(self) -> int:
        """E."""
        return int(self.bay_of_expert.shape[0])

    @property
    def width(self) -> int:
        """W."""
        return int(self.down.shape[1])

    @property
    def channels(self) -> int:
        """F."""
        return int(self.gate.shape[1])

    @property
    def shared_channels(self) -> int:
        """Channels of the shared expert; 0 without one."""
        return 0 if self.shared is None else int(self.shared.gate.shape[0])


@dataclass(frozen=True, slots=True)
class FarExperts(Generic[S]):
    """The M far bays, in memory that the device can read: ``gate`` and ``up`` [M, F, W], ``down``
    [M, W, F]. They are the homes of all E experts in host memory, or the landing bays of a step."""

    gate: S
    up: S
    down: S


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
    for row in range(real_rows(arguments.rows, x.shape[0])):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            matrices = of_expert(arguments, expert)
            if matrices is None:
                continue
            gate, up, down = matrices
            inner = product(activation, gate @ x[row].float(), up @ x[row].float())
            out[row] += weight * (down @ inner)
    shared = arguments.shared
    if shared is None:
        return out
    wide = x.float()
    inner = product(activation, linear(wide, shared.gate), linear(wide, shared.up))
    return add_shared(out, linear(inner, shared.down), x, shared.shared_gate)


def of_expert(
    arguments: ExpertsArguments[Stack], expert: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Gate, up and down of an expert on the device, wherever it is; ``None`` if it is absent."""
    bay, near = int(arguments.bay_of_expert[expert]), arguments.near
    device = arguments.bay_of_expert.device
    if bay < 0:
        return None
    there: Any = arguments
    if bay >= near:
        there, bay = arguments.far, bay - near
    stacks = there.gate, there.up, there.down
    gate, up, down = (matrix(stack, bay, dtype).to(device) for stack in stacks)
    return gate, up, down


def real_rows(rows: torch.Tensor | None, most: int) -> int:
    """The number of rows that are no padding."""
    return most if rows is None else min(most, int(rows))


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


EXPERTS = Op("experts", ExpertsArguments, experts)

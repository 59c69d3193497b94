"""The experts of one layer, stacked in bays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kinfolk.errors import UnsupportedModelError
from kinfolk.experts.cache import LayerExperts, PlacedStack
from kinfolk.experts.placement import bay_map
from kinfolk.quant.tensor import QuantTensor

if TYPE_CHECKING:
    from kinfolk_kernels.experts.op import FarExperts


@dataclass(frozen=True, slots=True)
class ExpertStore:
    """``gate`` and ``up`` [bays, F, width], ``down`` [bays, width, F], dense, quantised or packed;
    ``bay_of_expert`` int64 [experts]. ``far``: the homes of all experts, if some are not in these
    bays; ``landing``: the landing bays of steps of several rows; ``placed``: the layer's records,
    if the loader has placed them."""

    gate: Any
    up: Any
    down: Any
    bay_of_expert: torch.Tensor
    far: FarExperts[Any] | None = None
    landing: FarExperts[Any] | None = None
    placed: LayerExperts | None = None

    @classmethod
    def place(cls, layer: int, gate: Any, up: Any, down: Any, bays: tuple[int, ...]) -> ExpertStore:
        """Stack the experts of a layer in the order of ``bays``; they are given in order of id.
        Stacks that the loader has placed stay as they are.

        Raises :class:`UnsupportedModelError` if an expert has neither a bay nor a home.
        """
        if isinstance(gate, PlacedStack):
            return cls._of_records(gate, up, down)
        experts = int(gate.shape[0])
        where = bay_map(bays, experts, layer)
        if -1 in where:
            raise UnsupportedModelError(
                f"layer {layer}: {where.count(-1)} of {experts} experts have no bay, and the "
                "weight plan does not name their tensors as role 'experts', so the loader keeps no "
                "copy of them in host memory"
            )
        if bays != tuple(range(experts)):
            order = torch.tensor(bays, device=gate.device)
            gate, up, down = (_taken(stack, order) for stack in (gate, up, down))
        return cls(gate, up, down, torch.tensor(where, device=gate.device))

    @classmethod
    def _of_records(cls, gate: PlacedStack, up: PlacedStack, down: PlacedStack) -> ExpertStore:
        from kinfolk_kernels.experts.op import FarExperts

        placed = gate.experts
        far = landing = None
        if placed.far is not None:
            far = FarExperts(gate.far, up.far, down.far)
        if placed.landing is not None:
            landing = FarExperts(gate.landing, up.landing, down.landing)
        stacks = (gate.near, up.near, down.near)
        return cls(*stacks, placed.bay_of_expert, far, landing, placed)


def halves(stack: Any) -> tuple[Any, Any]:
    """Split fused gate and up matrices [experts, 2 F, width], gate rows first."""
    rows = int(stack.shape[1]) // 2
    if isinstance(stack, PlacedStack):
        near, far, landing = (
            (None, None) if part is None else halves(part)
            for part in (stack.near, stack.far, stack.landing)
        )
        each = zip(near, far, landing, strict=True)
        gate, up = (PlacedStack(*parts, stack.experts) for parts in each)
        return gate, up
    if isinstance(stack, torch.Tensor):
        return stack[:, :rows], stack[:, rows:]
    if isinstance(stack, QuantTensor):
        shape = (stack.shape[0], rows, *stack.shape[2:])
        return (
            QuantTensor(stack.data[:, :rows], stack.format, shape),
            QuantTensor(stack.data[:, rows:], stack.format, shape),
        )
    return stack.part(0, rows), stack.part(rows, 2 * rows)


def _taken(stack: Any, order: torch.Tensor) -> Any:
    return stack[order] if isinstance(stack, torch.Tensor) else stack.select(order)

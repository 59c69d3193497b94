"""The experts of one layer, stacked in bays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kinfolk.errors import UnsupportedModelError
from kinfolk.experts.placement import bay_map
from kinfolk.quant.tensor import QuantTensor


@dataclass(frozen=True, slots=True)
class ExpertStore:
    """``gate`` and ``up`` [bays, F, width], ``down`` [bays, width, F], dense, quantised or packed;
    ``bay_of_expert`` int64 [experts]."""

    gate: Any
    up: Any
    down: Any
    bay_of_expert: torch.Tensor

    @classmethod
    def place(cls, layer: int, gate: Any, up: Any, down: Any, bays: tuple[int, ...]) -> ExpertStore:
        """Stack the experts of a layer in the order of ``bays``; they are given in order of id.

        Raises :class:`UnsupportedModelError` if an expert has no bay.
        """
        experts = int(gate.shape[0])
        where = bay_map(bays, experts, layer)
        if -1 in where:
            raise UnsupportedModelError(
                f"layer {layer}: {where.count(-1)} of {experts} experts have no bay, and experts "
                "cannot be swapped in yet: all of them must fit on the device"
            )
        if bays != tuple(range(experts)):
            order = torch.tensor(bays, device=gate.device)
            gate, up, down = (_taken(stack, order) for stack in (gate, up, down))
        return cls(gate, up, down, torch.tensor(where, device=gate.device))


def halves(stack: Any) -> tuple[Any, Any]:
    """Split fused gate and up matrices [experts, 2 F, width], gate rows first."""
    rows = int(stack.shape[1]) // 2
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

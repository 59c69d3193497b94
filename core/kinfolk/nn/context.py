"""What a family gets to build a model with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.ops.binding import Ops
from kinfolk.plans import Placement, StatePlan


@dataclass(frozen=True, slots=True)
class BuildContext:
    """``dtype`` is the type of activations inside a layer; the residual stream is float32.

    ``context`` bounds the positions that will be asked for: tables are as long as that.
    """

    ops: Ops
    device: torch.device
    dtype: torch.dtype
    state: StatePlan
    context: int
    placement: Placement | None = None

    def bays(self, layer: int, experts: int) -> tuple[int, ...]:
        """The expert in each bay of a layer; the identity where nothing was placed."""
        if self.placement is None:
            return tuple(range(experts))
        return self.placement.bays[layer]

"""The build context: ops, device, dtype and state plan that a family builds a model with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kinfolk.nn.queries import ScoredAttention
from kinfolk.ops.binding import Ops
from kinfolk.plans import Placement, StatePlan

if TYPE_CHECKING:
    from kinfolk.nn.prompt_reading import PromptReading


@dataclass(frozen=True, slots=True)
class BuildContext:
    """``dtype`` is that of activations inside a layer; the residual stream is float32.

    ``context`` is the number of positions, and so the length of position tables. ``placement`` maps
    experts to bays. ``rows`` int32 [1] on the device is the number of real rows of the running
    step: those behind them are padding; ``None`` if nobody writes it. In steps of up to
    ``fetch_rows`` rows, experts that are chosen come to near bays; 0 = bays stay. ``reading``: the
    model scores the tokens of texts that it reads. ``scored`` names the layers that keep their
    last queries.
    """

    ops: Ops
    device: torch.device
    dtype: torch.dtype
    state: StatePlan
    context: int
    placement: Placement | None = None
    rows: torch.Tensor | None = None
    fetch_rows: int = 0
    reading: PromptReading | None = None
    scored: ScoredAttention | None = None

    def bays(self, layer: int, experts: int) -> tuple[int, ...]:
        """The expert in each bay of a layer; the identity without a placement."""
        if self.placement is None:
            return tuple(range(experts))
        return self.placement.bays[layer]

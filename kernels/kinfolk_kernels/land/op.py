"""The op ``land``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.experts.op import real_rows
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class LandArguments:
    """Copies the far experts of a layer that a step chose to landing bays, for this step alone.

    ``far`` uint8 [E, record] holds the homes of the experts, ``landing`` uint8 [M, record] takes
    their records. ``bay_of_expert`` int64 [E] is the map of :class:`ExpertsArguments` with ``bays``
    near bays, and stays. ``rows`` int32 [1]: rows from this one on are padding.

    Operand: ids int64 [R, top_k], the choice of ``route``. Of the experts in far bays that real
    rows chose, the one with the least id goes to landing bay 0, the next to 1, and so on. The map
    ``landed`` int64 [E] is then for this step's products, with ``landing`` in place of the far
    stacks: ``bays`` + i for an expert in landing bay i, its bay for one in a near bay, and -1 for
    all others. M is at least the number of experts in far bays.
    """

    far: torch.Tensor
    landing: torch.Tensor
    bay_of_expert: torch.Tensor
    landed: torch.Tensor
    rows: torch.Tensor
    bays: int

    @property
    def count(self) -> int:
        """E."""
        return int(self.far.shape[0])


def land(arguments: LandArguments, ids: torch.Tensor) -> None:
    """See :class:`LandArguments`."""
    bays, taken = arguments.bays, 0
    chosen = set(ids[: real_rows(arguments.rows, ids.shape[0])].flatten().tolist())
    for expert, bay in enumerate(arguments.bay_of_expert.tolist()):
        if bay >= bays and expert in chosen:
            arguments.landing[taken] = arguments.far[expert].to(arguments.landing.device)
            arguments.landed[expert] = bays + taken
            taken += 1
        else:
            arguments.landed[expert] = bay if bay < bays else -1


LAND = Op("land", LandArguments, land)

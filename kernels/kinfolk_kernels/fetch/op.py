"""The op ``fetch``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.experts.op import real_rows
from kinfolk_kernels.op import Op

HIT, FETCHED, READ_FAR = range(3)
"""Places of the counts in ``traffic``."""


@dataclass(frozen=True, slots=True)
class FetchArguments:
    """Brings the experts of a layer that a step chose from their homes into near bays.

    ``near`` uint8 [N, record] and ``far`` uint8 [E, record] hold the records of experts, one in
    each near bay and one for each expert. ``bay_of_expert`` int64 [E] is the map of
    :class:`ExpertsArguments`, ``expert_of_bay`` int32 [N] its inverse, -1 = empty. The first
    ``pinned`` bays keep their experts. ``rows`` int32 [1]: rows from this one on are padding.

    Operand: ids int64 [R, top_k], the choice of ``route``. In place, in this order: ``score``
    float32 [E] becomes score * ``decay`` + 1 for each expert that real rows chose, score *
    ``decay`` for the others. Chosen experts in far bays are missed. They take, the one with the
    largest score first (of equals the least id), the bays that are not pinned and whose experts no
    real row chose: empty bays first, then the one with the least score, of equals the least id;
    of empty ones the least bay. The record is copied; the expert that leaves is in its far bay
    again. Where no bay is left, experts stay far. ``uses`` int64 [E] counts the real rows that
    chose each expert, ``traffic`` int64 [3] the chosen experts that were near, that were fetched,
    and that stay far. Absent experts (-1) are counted in ``uses`` only.
    """

    near: torch.Tensor
    far: torch.Tensor
    bay_of_expert: torch.Tensor
    expert_of_bay: torch.Tensor
    score: torch.Tensor
    uses: torch.Tensor
    traffic: torch.Tensor
    rows: torch.Tensor
    pinned: int = 0
    decay: float = 0.95

    @property
    def bays(self) -> int:
        """N."""
        return int(self.near.shape[0])

    @property
    def count(self) -> int:
        """E."""
        return int(self.far.shape[0])


def fetch(arguments: FetchArguments, ids: torch.Tensor) -> None:
    """See :class:`FetchArguments`."""
    count, bays = arguments.count, arguments.bays
    real = ids[: real_rows(arguments.rows, ids.shape[0])].flatten()
    uses = real.bincount(minlength=count)
    used = uses > 0
    arguments.uses.add_(uses)
    arguments.score.mul_(arguments.decay).add_(used.to(arguments.score.dtype))
    score, bay_of, expert_of = (
        tensor.tolist()
        for tensor in (arguments.score, arguments.bay_of_expert, arguments.expert_of_bay)
    )
    chosen = used.nonzero().flatten().tolist()
    missed = sorted((-score[e], e) for e in chosen if bay_of[e] >= bays)
    free = sorted(
        (-1.0, -1, bay) if expert_of[bay] < 0 else (score[expert_of[bay]], expert_of[bay], bay)
        for bay in range(arguments.pinned, bays)
        if expert_of[bay] < 0 or not used[expert_of[bay]]
    )
    pairs = list(zip(missed, free, strict=False))
    for (_, expert), (_, leaving, bay) in pairs:
        arguments.near[bay] = arguments.far[expert].to(arguments.near.device)
        if leaving >= 0:
            arguments.bay_of_expert[leaving] = bays + leaving
        arguments.bay_of_expert[expert] = bay
        arguments.expert_of_bay[bay] = expert
    hits = sum(0 <= bay_of[e] < bays for e in chosen)
    counts = (hits, len(pairs), len(missed) - len(pairs))
    arguments.traffic.add_(torch.tensor(counts, device=arguments.traffic.device))


FETCH = Op("fetch", FetchArguments, fetch)

"""Expert placement: which expert is in which bay. Torch-free.

A bay is the place of one expert's weights on the device. A placement lists, for each layer, the
experts in its bays; an expert in no bay is not resident.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk.errors import HookValueError
from kinfolk.hookspecs import hookimpl
from kinfolk.plans import ExpertStats, Placement


class DefaultPlacement:
    """The core's implementation of the hook ``place_experts``."""

    @hookimpl
    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        return place_by_frequency(stats, budget)


def place_by_frequency(stats: ExpertStats, budget: int) -> Placement:
    """Give ``budget`` bays to the most used experts; without counts, evenly over the layers.

    Within a layer the order is that of the ids, so that a full placement is the identity.
    """
    total = sum(stats.layers)
    if budget >= total:
        return Placement(tuple(tuple(range(experts)) for experts in stats.layers))
    if stats.counts is None:
        ranked = [(expert, layer) for layer, n in enumerate(stats.layers) for expert in range(n)]
        ranked.sort()
    else:
        weighted = [
            (-uses, expert, layer)
            for layer, row in enumerate(stats.counts)
            for expert, uses in enumerate(row)
        ]
        ranked = [(expert, layer) for _, expert, layer in sorted(weighted)]
    kept = ranked[:budget]
    return Placement(
        tuple(
            tuple(sorted(expert for expert, where in kept if where == layer))
            for layer in range(len(stats.layers))
        )
    )


def bay_map(bays: Sequence[int], experts: int, layer: int) -> list[int]:
    """The bay of each expert of a layer. Raises :class:`HookValueError` for a wrong placement."""
    bay_of = [-1] * experts
    for bay, expert in enumerate(bays):
        if not 0 <= expert < experts or bay_of[expert] >= 0:
            raise HookValueError(
                f"hook place_experts: layer {layer} has expert {expert} in bay {bay}, but the "
                f"layer's experts are 0 to {experts - 1}, each in one bay at most"
            )
        bay_of[expert] = bay
    return bay_of

"""Expert placement: which expert is in which near bay. Torch-free.

A near bay is the place of one expert's record on the device. A placement lists, for each layer, the
experts in its near bays; an expert in none of them is far, in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk.errors import HookValueError
from kinfolk.hookspecs import hookimpl
from kinfolk.plans import ExpertResidency, ExpertStats, ExpertSwaps, ExpertUse, Placement

FEWEST_LANDING_BAYS = 2
"""A stack of one matrix has no stride, by which kernels go from record to record."""


class DefaultPlacement:
    """The core's implementation of the hooks ``place_experts`` and ``swap_experts``."""

    @hookimpl
    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        return place_by_frequency(stats, budget)

    @hookimpl
    def swap_experts(self, use: ExpertUse, residency: ExpertResidency) -> ExpertSwaps:
        return no_swaps(use, residency)


def place_by_frequency(stats: ExpertStats, budget: int) -> Placement:
    """Fill ``budget`` bytes with the experts that are used most for each byte of their records.

    Of equals, those that are used more; of these, those that come first among the experts of their
    layer, so that without counts the layers have equal numbers of bays. Within a layer the order is
    that of the ids, so that a full placement is the identity. No bay is pinned. Experts without
    records, of 0 bytes, all have bays.
    """
    sizes = stats.record_bytes
    counts = stats.counts or tuple((0,) * experts for experts in stats.layers)
    ranked = sorted(
        (-count / max(1, sizes[layer]), -count, place, layer, expert)
        for layer, row in enumerate(counts)
        for place, (count, expert) in enumerate(
            sorted(zip(row, range(len(row)), strict=True), key=lambda one: (-one[0], one[1]))
        )
    )
    bays: list[list[int]] = [[] for _ in stats.layers]
    for _, _, _, layer, expert in ranked:
        if sizes[layer] <= budget:
            budget -= sizes[layer]
            bays[layer].append(expert)
    return Placement(tuple(tuple(sorted(row)) for row in bays))


def landing_bays(count: int, bays: int) -> int:
    """Landing bays of a layer of ``count`` experts of which ``bays`` are near: where those that are
    far are copied to for a step of several rows."""
    return max(FEWEST_LANDING_BAYS, count - bays) if bays < count else 0


def no_swaps(use: ExpertUse, residency: ExpertResidency) -> ExpertSwaps:
    """All experts stay where they are: captured steps fetch what they miss."""
    return ExpertSwaps()


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

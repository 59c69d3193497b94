"""What is wrong with the answers of the hooks ``place_experts`` and ``swap_experts``."""

from __future__ import annotations

from kinfolk.plans import ExpertResidency, ExpertStats, ExpertSwaps, Placement


def placement_problem(placement: Placement, stats: ExpertStats, budget: int) -> str:
    """Why ``placement`` cannot be used for a model of these experts; empty if it can."""
    bays, pinned = placement.bays, placement.pinned
    if len(bays) != len(stats.layers):
        return f"bays for {len(bays)} layers, the model has {len(stats.layers)}"
    if pinned and len(pinned) != len(bays):
        return f"pinned bays for {len(pinned)} layers, the model has {len(bays)}"
    for layer, (experts, row) in enumerate(zip(stats.layers, bays, strict=True)):
        seen = set[int]()
        for bay, expert in enumerate(row):
            if not 0 <= expert < experts or expert in seen:
                return (
                    f"layer {layer} has expert {expert} in bay {bay}, but the layer's "
                    f"{experts} experts are counted from 0, and each is in one bay at most"
                )
            seen.add(expert)
        if pinned and not 0 <= pinned[layer] <= len(row):
            return f"layer {layer} has {pinned[layer]} pinned bays of {len(row)}"
    asked = sum(len(row) * size for row, size in zip(bays, stats.record_bytes, strict=True))
    if asked > budget:
        return f"the records in bays have {asked} bytes, the budget is {budget}"
    if sum(n * size for n, size in zip(stats.layers, stats.record_bytes, strict=True)) <= budget:
        # Host memory has not been planned for any.
        for layer, (experts, row) in enumerate(zip(stats.layers, bays, strict=True)):
            if len(row) < experts:
                return (
                    f"layer {layer} has bays for {len(row)} of {experts} experts, but the budget "
                    "holds those of all layers"
                )
    return ""


def swap_problem(answer: ExpertSwaps, residency: ExpertResidency) -> str:
    """Why these swaps cannot be executed; empty if they can."""
    experts_seen, bays_seen = set[tuple[int, int]](), set[tuple[int, int]]()
    for swap in answer.swaps:
        if not 0 <= swap.layer < len(residency.bays):
            return f"a swap in layer {swap.layer}, the model has {len(residency.bays)}"
        experts, bays = residency.experts[swap.layer], len(residency.bays[swap.layer])
        pinned = residency.pinned[swap.layer] if residency.pinned else 0
        where = f"layer {swap.layer}: expert {swap.expert} takes bay {swap.bay}"
        if not 0 <= swap.expert < experts:
            return f"{where}, but the layer's {experts} experts are counted from 0"
        if not 0 <= swap.bay < bays:
            return f"{where}, but the layer's {bays} near bays are counted from 0"
        if swap.bay < pinned:
            return f"{where}, but the first {pinned} bays are pinned"
        if (swap.layer, swap.bay) in bays_seen:
            return f"{where}, but another swap takes that bay"
        if (swap.layer, swap.expert) in experts_seen:
            return f"{where}, but another swap moves that expert"
        experts_seen.add((swap.layer, swap.expert))
        bays_seen.add((swap.layer, swap.bay))
    return ""

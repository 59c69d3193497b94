"""The model hooks of the family."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.experts.placement import no_swaps, place_by_frequency
from kinfolk.model_api import GraphShape, Model, StepFn
from kinfolk.plans import (
    Codec,
    ExpertResidency,
    ExpertStats,
    ExpertSwaps,
    ExpertUse,
    Paged,
    Placement,
    PoolRule,
    Section,
    SlotMapping,
    StateLimits,
    StatePlan,
)
from kinfolk.spec.verify import verify
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep
from kinfolk_laguna.config import LagunaConfig


class LagunaHooks:
    """KV pools: one of full attention, which keeps all positions, and, if layers are windowed, one
    that frees the positions that the window has passed."""

    @hookimpl
    def allocate_cache(self, config: LagunaConfig, limits: StateLimits) -> StatePlan:
        codec = limits.codec or Codec("bf16")
        sections = tuple(
            Section(name, config.kv_heads, config.head_dim, codec) for name in ("k", "v")
        )
        return StatePlan(
            tuple(
                Paged(sections, config.window if windowed else None) for windowed in config.windowed
            )
        )

    @hookimpl
    def build_graph(self, model: Model, shape: GraphShape) -> StepFn:
        return model.forward

    @hookimpl
    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
        """Chunks of windowed layers cannot be evicted: the window needs them until it passes."""
        return SlotMapping(tuple(PoolRule(window) for window in plan.windows))

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        return verify(step, draft, sampling)

    @hookimpl
    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        return place_by_frequency(stats, budget)

    @hookimpl
    def swap_experts(self, use: ExpertUse, residency: ExpertResidency) -> ExpertSwaps:
        return no_swaps(use, residency)

"""The model hooks of the family, all by functions of the core."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.experts.placement import no_swaps, place_by_frequency
from kinfolk.model_api import GraphShape, Model, StepFn
from kinfolk.nn.hybrid.state import hybrid_state
from kinfolk.plans import (
    Codec,
    ExpertResidency,
    ExpertStats,
    ExpertSwaps,
    ExpertUse,
    Placement,
    PoolRule,
    SlotMapping,
    StateLimits,
    StatePlan,
)
from kinfolk.spec.verify import verify
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep
from kinfolk_qwen35moe.config import Qwen35MoeConfig


class Qwen35MoeHooks:
    """Paged keys and values for attention layers, recurrent state for the others."""

    @hookimpl
    def allocate_cache(self, config: Qwen35MoeConfig, limits: StateLimits) -> StatePlan:
        return hybrid_state(config, limits.codec or Codec("bf16"))

    @hookimpl
    def build_graph(self, model: Model, shape: GraphShape) -> StepFn:
        return model.forward

    @hookimpl
    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
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

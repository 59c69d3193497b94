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
    LayerState,
    Paged,
    Placement,
    PoolRule,
    Section,
    Shared,
    SlotMapping,
    StateLimits,
    StatePlan,
)
from kinfolk.spec.verify import verify
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep
from kinfolk_gemma4.config import Gemma4Config


class Gemma4Hooks:
    """Two KV pools: full attention keeps all positions, windowed attention frees passed ones."""

    @hookimpl
    def allocate_cache(self, config: Gemma4Config, limits: StateLimits) -> StatePlan:
        """Keys and values of every layer that owns some. Values that equal the key projection are
        stored separately, because only keys are rotated."""
        codec = limits.codec or Codec("bf16")

        def state(layer: int) -> LayerState:
            if not config.owns_keys(layer):
                return Shared(config.owner[layer])
            heads, dim = config.kv_heads[layer], config.head_dim[layer]
            return Paged(
                (Section("k", heads, dim, codec), Section("v", heads, dim, codec)),
                window=config.window if config.windowed[layer] else None,
            )

        return StatePlan(tuple(state(layer) for layer in range(config.layers)))

    @hookimpl
    def build_graph(self, model: Model, shape: GraphShape) -> StepFn:
        return model.forward

    @hookimpl
    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
        """Chunks of full layers may be evicted except the first and last few; windowed layers keep
        theirs."""
        return SlotMapping(tuple(PoolRule(window) for window in plan.windows))

    @hookimpl
    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        return place_by_frequency(stats, budget)

    @hookimpl
    def swap_experts(self, use: ExpertUse, residency: ExpertResidency) -> ExpertSwaps:
        return no_swaps(use, residency)

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        return verify(step, draft, sampling)

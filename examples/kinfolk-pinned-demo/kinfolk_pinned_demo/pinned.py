"""Pinned experts: those that are placed when the model opens keep their bays."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.experts.placement import place_by_frequency
from kinfolk.model_api import ModelInfo
from kinfolk.plans import ExpertStats, Placement


class Pinned:
    """The core's choice of experts, with every bay pinned."""

    @hookimpl
    def place_experts(self, stats: ExpertStats, budget: int) -> Placement:
        bays = place_by_frequency(stats, budget).bays
        return Placement(bays, tuple(len(row) for row in bays))


def create(info: ModelInfo) -> Pinned:
    return Pinned()

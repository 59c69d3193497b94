"""Which chunks of a sequence may leave the device. Torch-free."""

from __future__ import annotations

from kinfolk.hookspecs import hookimpl
from kinfolk.plans import PoolRule, SlotMapping, StateLimits, StatePlan

SINK, TAIL = 1, 4
"""Chunks at the start and at the end of a sequence that stay: every row attends to them."""


class DefaultMapping:
    """The core's answer to the hook ``map_slots``: pool full attention, window the rest."""

    @hookimpl
    def map_slots(self, plan: StatePlan, residency: StateLimits) -> SlotMapping:
        return SlotMapping(tuple(PoolRule(window, SINK, TAIL) for window in plan.windows))

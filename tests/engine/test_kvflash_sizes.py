"""``--kvflash auto``: the largest budget that fits, or an error with the arithmetic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kinfolk.engine.kvflash import plan_residency
from kinfolk.errors import CapacityError
from kinfolk.plans import Paged, PoolRule, Section, SlotMapping, StateLimits, StatePlan
from kinfolk.settings import load_settings
from kinfolk.state.host_rows import SLAB_BYTES

PLAN = StatePlan((Paged((Section("k", 4, 256), Section("v", 4, 256))),))
LIMITS = StateLimits(slots=2, checkpoints=0, blocks=(), context=2**18, step_rows=512)
ROW_BYTES = 2 * 4 * 256 * 2 * 64
HOOKS = SimpleNamespace(
    map_slots=lambda plan, limits: SlotMapping((PoolRule(None, 1, 4),)), asked=lambda hook: ()
)


def divider(most):
    """A device with room for so many resident chunks of a sequence."""

    def divide(*, wanted, paged):
        chunks = wanted.context // 64 if wanted.resident is None else wanted.resident
        if chunks > most:
            raise CapacityError(f"{chunks} chunks do not fit")
        return SimpleNamespace(limits=wanted, paged=paged)

    return divide


def planned(most=10**6, host=2**40, **settings):
    options = load_settings(context=2**18, kvflash="auto", **settings)
    return plan_residency(options, PLAN, LIMITS, HOOKS, divider(most), host)


@pytest.mark.parametrize(("most", "chunks"), [(10**6, 256), (256, 256), (200, 128), (40, 39)])
def test_the_largest_budget_that_fits_is_taken(most, chunks):
    memory, rules = planned(most)
    assert rules.chunks == memory.limits.resident == chunks


def test_a_device_without_room_for_the_smallest_budget_is_never_silently_off():
    with pytest.raises(CapacityError, match="not even the smallest budget of 2496 tokens fits"):
        planned(38)


def test_host_memory_is_for_all_chunks_by_the_bytes_of_the_plan():
    """Computed from heads, widths and formats: 64 positions of keys and values."""
    chunks = 2**18 // 64
    memory, _ = planned()
    assert memory.paged == 2 * chunks * ROW_BYTES
    assert memory.paged % SLAB_BYTES == 0
    memory, _ = planned(host=3 * chunks * ROW_BYTES)
    assert memory.paged == 1.5 * chunks * ROW_BYTES, "half of what is free"
    with pytest.raises(CapacityError, match=f"4096 chunks of {ROW_BYTES} bytes = 1.000 GiB"):
        planned(host=2 * chunks * ROW_BYTES - 1)
    with pytest.raises(CapacityError, match=r"asks for 9\.00 GiB, the host has 3\.00 GiB"):
        planned(host=3 * 2**30, kvflash_host=9)

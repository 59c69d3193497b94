"""``--kvflash auto``: the largest budget that fits, or an error with the arithmetic."""

from __future__ import annotations

import resource
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kinfolk.engine.kvflash import plan_residency
from kinfolk.engine.pinning import lock_limit, refuse_unpinnable
from kinfolk.engine.sizing import DEFAULT_CONTEXT
from kinfolk.errors import CapacityError
from kinfolk.plans import Codec, Paged, PoolRule, Section, SlotMapping, StateLimits, StatePlan
from kinfolk.settings import load_settings
from kinfolk.state.host_rows import SLAB_BYTES
from kinfolk.state.layout import pool_layouts

PLAN = StatePlan((Paged((Section("k", 4, 256), Section("v", 4, 256))),))
LIMITS = StateLimits(slots=2, checkpoints=0, blocks=(), context=2**18, step_rows=512)
ROW_BYTES = 2 * 4 * 256 * 2 * 64
HOOKS = SimpleNamespace(
    map_slots=lambda plan, limits: SlotMapping((PoolRule(None, 1, 4),)), asked=lambda hook: ()
)


def divider(most):
    """A device with room for so many resident chunks of a sequence."""

    def divide(*, wanted, paged, asked=None):
        limits = replace(wanted, context=min(asked or DEFAULT_CONTEXT, wanted.context))
        chunks = min(limits.context // 64, wanted.resident or limits.context)
        if chunks > most:
            raise CapacityError(f"{chunks} chunks do not fit")
        return SimpleNamespace(limits=limits, paged=paged)

    return divide


def planned(most=10**6, host=2**40, **settings):
    options = load_settings(**{"context": 2**18, "kvflash": "auto", **settings})
    return plan_residency(options, PLAN, LIMITS, HOOKS, divider(most), host)


@pytest.mark.parametrize(("most", "chunks"), [(10**6, 256), (256, 256), (200, 128), (40, 39)])
def test_the_largest_budget_that_fits_is_taken(most, chunks):
    memory, rules = planned(most)
    assert rules.chunks == memory.limits.resident == chunks


def test_a_device_without_room_for_the_smallest_budget_is_never_silently_off():
    with pytest.raises(CapacityError, match="not even the smallest budget of 2496 tokens fits"):
        planned(38)


@pytest.mark.parametrize(
    ("most", "budget", "context"),
    [
        (256, 16384, DEFAULT_CONTEXT),
        (255, 8192, DEFAULT_CONTEXT),
        (64, 4096, DEFAULT_CONTEXT),
        (39, 39 * 64, DEFAULT_CONTEXT),
    ],
)
def test_a_default_context_stays_while_a_smaller_budget_fits(most, budget, context):
    """A context as short as the budget would switch paging off."""
    memory, rules = planned(most, context=None)
    assert rules.chunks * 64 == budget
    assert memory.limits.context == context


def test_a_default_context_is_lowered_where_the_host_has_no_room_for_its_chunks():
    room = 2 * (DEFAULT_CONTEXT // 2 // 64) * ROW_BYTES
    memory, rules = planned(200, host=room, context=None)
    assert memory.limits.context == DEFAULT_CONTEXT // 2
    assert rules.chunks == 128
    with pytest.raises(CapacityError, match=f"a context of {DEFAULT_CONTEXT} is 512 chunks"):
        planned(200, host=room // 8, context=None)
    with pytest.raises(CapacityError, match=f"a context of {DEFAULT_CONTEXT} is 512 chunks"):
        planned(200, host=room, context=DEFAULT_CONTEXT)


def test_a_budget_that_was_asked_for_is_not_made_pointless_by_a_lower_context():
    memory, rules = planned(128, context=None, kvflash=8192)
    assert (rules.chunks, memory.limits.context) == (128, DEFAULT_CONTEXT)
    with pytest.raises(CapacityError, match="128 chunks do not fit"):
        planned(127, context=None, kvflash=8192)


@pytest.mark.parametrize(("most", "chunks"), [(4096, 64), (5000, 78), (100, 39)])
def test_the_most_that_auto_chooses_may_be_set(most, chunks):
    assert planned(kvflash_most=most)[1].chunks == chunks


@pytest.mark.parametrize(("codec", "kibibytes"), [("bf16", 64), ("q8_0", 34), ("q4_0", 18)])
def test_bytes_of_a_token_are_those_of_heads_widths_and_format(codec, kibibytes):
    """16 layers with 4 heads of 256 numbers, as the 27B has: a scale of 2 bytes for 32 numbers."""
    sections = tuple(Section(name, 4, 256, Codec(codec)) for name in ("k", "v"))
    plan = StatePlan((Paged(sections),) * 16)
    (layout,) = pool_layouts(plan)
    assert layout.block_bytes == 64 * kibibytes * 2**10
    options = load_settings(context=2**18, kvflash=16384)
    memory, _ = plan_residency(options, plan, LIMITS, HOOKS, divider(10**6), 2**40)
    least = 2 * 2**18 * kibibytes * 2**10
    assert least <= memory.paged < 1.01 * least, "in whole pages and slabs"


# -- pinned memory --------------------------------------------------------------------------------


def refused(nbytes):
    raise RuntimeError("operation not permitted")


def test_a_limit_that_the_driver_heeds_is_refused_with_both_numbers_and_what_to_do():
    with pytest.raises(CapacityError) as caught:
        refuse_unpinnable(3 * 2**30, 2**30, refused)
    words = str(caught.value)
    assert words.startswith("3.00 GiB of host memory are to be pinned, and this process may lock 1")
    for part in (f"RLIMIT_MEMLOCK = {2**30}", "ulimit -l", "--kvflash-host", "not permitted"):
        assert part in words


@pytest.mark.parametrize(
    ("nbytes", "limit", "tried"),
    [
        (2**30, None, []),
        (2**30, 2**30, []),
        (2**30, 2**16, [2**16 + SLAB_BYTES]),
        (2**16 + 1, 2**16, [2**16 + 1]),
    ],
)
def test_a_limit_that_the_driver_does_not_heed_is_none(nbytes, limit, tried):
    asked = []
    refuse_unpinnable(nbytes, limit, asked.append)
    assert asked == tried


@pytest.mark.parametrize(
    ("soft", "limit"), [(65536, 65536), (0, 0), (resource.RLIM_INFINITY, None)]
)
def test_the_limit_is_that_of_the_process(monkeypatch, soft, limit):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: asked.append(which) or (soft, -1))
    assert lock_limit() == limit
    assert asked == [resource.RLIMIT_MEMLOCK]


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

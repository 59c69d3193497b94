"""How many slots and blocks are allocated for the available memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from kinfolk.engine.buckets import draft_lanes, draft_rows, lane_depth, wanted_captures
from kinfolk.engine.memory import (
    DEMOTED,
    FEWEST_CAPTURES,
    LAUNCH_BYTES,
    LAYER_LAUNCHES,
    SCRATCH,
    graph_bytes,
    most_captures,
    plan_memory,
    work_bytes,
)
from kinfolk.engine.preparing import default_checkpoints
from kinfolk.engine.sizing import (
    DEFAULT_CONTEXT,
    MOST_FOR_SPARE,
    free_memory,
    host_memory,
    size_state,
    state_bytes,
)
from kinfolk.errors import CapacityError
from kinfolk.plans import (
    Codec,
    Paged,
    Recurrent,
    RecurrentTensor,
    Section,
    StateLimits,
    StatePlan,
    WeightPlan,
    WeightSpec,
)
from kinfolk.settings import load_settings
from kinfolk.state.layout import pool_layouts, slot_bytes
from kinfolk.state.state import State

KV = (Section("k", 2, 64, Codec("f32")), Section("v", 2, 64, Codec("f32")))
DELTA = Recurrent((RecurrentTensor("s", (4, 32, 32)), RecurrentTensor("c", (3, 10), "bf16")))
FULL = StatePlan((Paged(KV), DELTA))
HEAVY = StatePlan((Paged(KV), Recurrent((RecurrentTensor("s", (8, 128, 128)),))))
"""Its recurrent state takes as much as eight blocks."""

MIXED = StatePlan((Paged(KV, window=100), Paged(KV), Paged(KV, window=100)))
CODED = MIXED.storing("k", Codec("q8_0")).storing("v", Codec("q4_0"))
CHUNK_BYTES = 64 * 2 * 64 * 4 * 2
PLENTY = 2**40
SPARE = 2
"""Blocks of a pool for padding and for trees of up to 64 rows."""


def wanted(**changes):
    values = {"slots": 4, "checkpoints": 2, "blocks": (), "context": 0, "step_rows": 128, **changes}
    return StateLimits(**values)


def memory_of(plan, limits):
    """Bytes that the blocks and slots take."""
    pools = sum(
        (n + SPARE) * layout.block_bytes
        for n, layout in zip(limits.blocks, pool_layouts(plan), strict=True)
    )
    return pools + limits.recurrent_slots * slot_bytes(plan)


def test_bytes_of_a_slot_are_those_of_its_tensors():
    assert slot_bytes(FULL) == 4 * 32 * 32 * 4 + 3 * 10 * 2
    assert slot_bytes(MIXED) == 0


def test_codes_and_their_scales_are_counted():
    limits = wanted(blocks=(10, 7))
    plain, coded = state_bytes(MIXED, limits), state_bytes(CODED, limits)
    # 34 bytes and 18 for 32 keys and 32 values that take 128 each as numbers.
    assert coded == {name: nbytes * (34 + 18) // 256 for name, nbytes in plain.items()}
    state = State(CODED, limits, torch.device("cpu"))
    held = [pool.data.nbytes + pool.arena.nbytes for pool in state.pools]
    assert held == list(coded.values())


def test_with_plenty_of_memory_every_slot_has_the_whole_context():
    limits = size_state(FULL, wanted(), 1000, PLENTY, None)
    assert (limits.context, limits.blocks) == (1000, (4 * 16,))


def test_a_windowed_pool_holds_windows_of_slots_and_checkpoints():
    limits = size_state(MIXED, wanted(), 6400, PLENTY, None)
    window = -(-(100 + 128 - 1) // 64) + 2
    assert limits.blocks == (4 * 100, (4 + 2) * window)


def test_a_context_nobody_asked_for_is_bounded():
    assert size_state(FULL, wanted(), 10**6, PLENTY, None).context == DEFAULT_CONTEXT
    assert size_state(FULL, wanted(), 10**6, PLENTY, 2 * DEFAULT_CONTEXT).context == (
        2 * DEFAULT_CONTEXT
    )


def test_slots_share_what_does_not_hold_the_whole_context_for_all():
    fixed = 7 * slot_bytes(FULL)
    limits = size_state(FULL, wanted(), 1000, fixed + (30 + SPARE) * CHUNK_BYTES, None)
    assert (limits.context, limits.blocks) == (1000, (30,))


def test_a_context_nobody_asked_for_shrinks_until_one_sequence_fits():
    fixed = 7 * slot_bytes(FULL)
    limits = size_state(FULL, wanted(), 4096, fixed + (20 + SPARE) * CHUNK_BYTES, None)
    assert (limits.context, limits.blocks) == (1024, (20,))


def test_a_context_that_was_asked_for_is_refused_with_the_arithmetic():
    with pytest.raises(CapacityError) as refused:
        size_state(FULL, wanted(), 4096, 20 * CHUNK_BYTES, 4096)
    for part in ("context of 4096", "4 slots and 2 checkpoints", "--context, --slots"):
        assert part in str(refused.value)


def test_counts_nobody_asked_for_are_lowered_before_the_context():
    budget = 5 * slot_bytes(FULL) + (16 + SPARE) * CHUNK_BYTES
    flexible = frozenset({"slots", "checkpoints"})
    limits = size_state(FULL, wanted(checkpoints=8), 1000, budget, None, flexible)
    assert (limits.context, limits.slots, limits.checkpoints) == (1000, 2, 2)
    limits = size_state(FULL, wanted(checkpoints=8), 1000, budget, None, frozenset({"slots"}))
    assert (limits.context, limits.slots, limits.checkpoints) == (500, 1, 8)


def test_a_count_that_costs_nothing_is_not_lowered():
    limits = size_state(
        MIXED, wanted(), 6400, 100 * CHUNK_BYTES, None, frozenset({"slots", "checkpoints"})
    )
    assert (limits.slots, limits.checkpoints) == (4, 2)
    assert limits.context < 6400


def test_too_little_for_anything_is_refused():
    with pytest.raises(CapacityError, match="GiB can be used"):
        size_state(FULL, wanted(), 4096, CHUNK_BYTES, None)


@pytest.mark.parametrize("plan", [FULL, MIXED, CODED], ids=["full", "mixed", "coded"])
@pytest.mark.parametrize("asked", [None, 640])
def test_state_never_takes_more_than_it_may(plan, asked):
    """For any memory: one sequence of full length fits, and the total stays within the limit."""
    sizes = itertools.product((1, 4, 9), (0, 5), range(20, 400, 7))
    for slots, checkpoints, chunks in sizes:
        free = chunks * CHUNK_BYTES
        ask = wanted(slots=slots, checkpoints=checkpoints)
        try:
            limits = size_state(plan, ask, 3000, free, asked)
        except CapacityError:
            continue
        assert memory_of(plan, limits) <= free
        assert all(n >= -(-limits.context // 64) for n in limits.blocks[:1])


def test_nobody_pays_for_a_spare_slot():
    """For any memory: no context, slot or checkpoint less, and of the pools next to nothing."""
    flexible, with_spare, without = frozenset({"slots", "checkpoints"}), 0, 0
    for slots, kib in itertools.product((1, 4), range(4000, 60_000, 97)):
        ask, free = wanted(slots=slots, checkpoints=4), kib * 1024
        try:
            plain = size_state(HEAVY, ask, 3000, free, None, flexible)
        except CapacityError:
            continue
        limits = size_state(HEAVY, replace(ask, spare_slots=1), 3000, free, None, flexible)
        assert replace(limits, spare_slots=0, blocks=()) == replace(plain, blocks=())
        assert limits.blocks[0] >= plain.blocks[0] * (1 - MOST_FOR_SPARE)
        assert memory_of(HEAVY, limits) <= free
        assert sum(state_bytes(HEAVY, limits).values()) == memory_of(HEAVY, limits)
        if limits.spare_slots:
            with_spare += 1
        else:
            without += 1
            assert limits == plain
            assert memory_of(HEAVY, plain) + slot_bytes(HEAVY) > free
    assert min(with_spare, without) > 50


def test_a_spare_slot_that_does_not_fit_is_not_refused():
    fixed = 7 * slot_bytes(HEAVY) + (16 + SPARE) * CHUNK_BYTES
    for beyond, count in ((0, 0), (slot_bytes(HEAVY), 1)):
        budget = fixed + 3 * 16 * CHUNK_BYTES + beyond
        limits = size_state(HEAVY, wanted(spare_slots=1), 1000, budget, 1000)
        assert (limits.spare_slots, limits.blocks) == (count, (64,))
    assert size_state(HEAVY, wanted(spare_slots=1), 1000, fixed, 1000).blocks == (16,)


def test_memory_that_can_be_had_is_what_linux_calls_available(tmp_path):
    report = tmp_path / "meminfo"
    report.write_text("MemTotal: 900 kB\nMemFree:  3 kB\nMemAvailable:   70 kB\nCached: 60 kB\n")
    assert host_memory(report, tmp_path) == 70 * 1024


def test_a_container_has_what_its_limit_leaves(tmp_path):
    (tmp_path / "meminfo").write_text("MemAvailable:   70 kB\n")
    (tmp_path / "memory.max").write_text("50000\n")
    (tmp_path / "memory.current").write_text("30000\n")
    (tmp_path / "memory.stat").write_text("anon 9000\ninactive_file 4000\n")
    assert host_memory(tmp_path / "meminfo", tmp_path) == 50000 - 30000 + 4000
    (tmp_path / "memory.max").write_text("20000\n")
    assert host_memory(tmp_path / "meminfo", tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(tmp_path / "meminfo", tmp_path) == 70 * 1024
    (tmp_path / "memory.max").write_text("nonsense\n")
    assert host_memory(tmp_path / "meminfo", tmp_path) == 70 * 1024


def test_where_nothing_is_reported_half_of_the_memory_counts(tmp_path):
    half = host_memory(tmp_path / "absent", tmp_path)
    assert half > 2**26
    (tmp_path / "old").write_text("MemTotal: 900 kB\n")
    assert host_memory(tmp_path / "old", tmp_path) == half


def test_this_machine_has_memory():
    import torch

    assert free_memory(torch.device("cpu")) > 2**26


# -- the whole device -----------------------------------------------------------------------------


def divide(usable, **changes):
    values = {
        "usable": usable,
        "weights": 3 * 2**30,
        "work": 2**30,
        "graphs": 2**28,
        "is_host": False,
        "plan": FULL,
        "wanted": wanted(),
        "model_context": 4096,
        "asked": None,
        "flexible": frozenset(),
    }
    return plan_memory(**{**values, **changes})


@pytest.mark.parametrize("gib", [4.5, 5, 24])
def test_the_parts_of_a_device_are_never_more_than_it_has(gib):
    memory = divide(int(gib * 2**30))
    assert memory.total <= memory.usable
    assert memory.parts["graphs"] == 2**28
    assert set(memory.parts) >= {"weights", "margin", "keys and values", "recurrent state"}


def test_half_of_what_weights_leave_of_a_host_is_not_touched():
    memory = divide(8 * 2**30, is_host=True)
    assert memory.others == 2 * 2**30
    assert memory.total <= memory.usable - memory.others
    assert "graphs" not in memory.parts


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs():
    with pytest.raises(
        CapacityError, match=r"weights 3\.00 \+ work space 1\.00 .*4\.10 GiB can be"
    ):
        divide(int(4.1 * 2**30))


def test_a_context_that_does_not_fit_is_refused_with_all_that_stands_in_its_way():
    with pytest.raises(CapacityError, match=r"context of 4096 .*4\.40 GiB less weights 3\.00"):
        divide(int(4.4 * 2**30), asked=4096, wanted=wanted(slots=9000))


def test_a_device_with_memory_of_its_own_leaves_the_host_to_checkpoints():
    memory = divide(2**33, cache=None, host_free=20 * 2**30)
    assert memory.beside == memory.limits.host_bytes == 5 * 2**30
    assert divide(2**33, cache=None, host_free=2**40).beside == 8 * 2**30
    assert divide(2**33, cache=123, host_free=1000).beside == 123
    assert DEMOTED not in memory.parts
    assert memory.total == divide(2**33).total + slot_bytes(FULL), "and a spare slot"
    assert "5.00 GiB of host memory for more" in str(memory)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"wanted": wanted(checkpoints=1)}, 1),
        ({"wanted": wanted(checkpoints=0)}, 0),
        ({"cache": 0}, 0),
        ({"is_host": True}, 0),
        ({"plan": MIXED}, 0),
        ({"experts": 2**28, "homes": 2**30}, 0),
    ],
    ids=["two", "one", "none", "nothing is saved", "no copies", "no recurrent state", "experts"],
)
def test_a_spare_slot_is_for_checkpoints_that_are_copied_to_the_host(changes, count):
    memory = divide(2**33, **{"cache": None, "host_free": 20 * 2**30, **changes})
    assert memory.limits.spare_slots == count
    plan = changes.get("plan", FULL)
    assert sum(memory.state.values()) == memory_of(plan, memory.limits)


def test_more_host_memory_than_is_free_is_refused():
    with pytest.raises(CapacityError, match=r"asks for 2\.00 GiB, the host has 1\.00 GiB free"):
        divide(2**33, cache=2**31, host_free=2**30)


def test_without_checkpoints_on_the_device_none_are_kept_on_the_host():
    for is_host in (False, True):
        memory = divide(
            2**33, cache=None, host_free=2**40, is_host=is_host, wanted=wanted(checkpoints=0)
        )
        assert memory.limits.host_bytes == 0
        assert DEMOTED not in memory.parts


@pytest.mark.parametrize("cache", [None, 0, 2**28, 2**30])
@pytest.mark.parametrize("gib", [7, 8, 64])
def test_on_a_host_demoted_checkpoints_are_a_part_of_the_sum(gib, cache):
    usable = gib * 2**30
    memory = divide(usable, is_host=True, cache=cache, host_free=usable)
    assert memory.total <= usable - memory.others
    assert memory.parts.get(DEMOTED, 0) == memory.limits.host_bytes
    assert memory.beside == 0
    if cache is None:
        assert 0 < memory.limits.host_bytes <= min(usable // 4, 2**33)
        assert memory.limits == replace(
            divide(usable, is_host=True).limits, host_bytes=memory.limits.host_bytes
        ), "state comes first"
    else:
        assert memory.limits.host_bytes == cache


def test_host_memory_that_leaves_too_little_for_state_is_refused_with_the_arithmetic():
    with pytest.raises(CapacityError, match=r"less .*demoted checkpoints 1\.50"):
        divide(7 * 2**30, is_host=True, cache=3 * 2**29, host_free=7 * 2**30)


def test_a_host_that_keeps_more_leaves_two_checkpoints_to_a_gpu():
    unset, asked = load_settings(), load_settings(checkpoints=5)
    assert default_checkpoints(unset, is_host=False, cached=True) == 2
    assert default_checkpoints(unset, is_host=False, cached=False) == 8
    assert default_checkpoints(unset, is_host=True, cached=True) == 8
    assert default_checkpoints(asked, is_host=False, cached=True) == 5
    without = load_settings(batch_invariant=True, checkpoints=5)
    assert default_checkpoints(without, is_host=False, cached=True) == 0


def test_windows_are_told_apart():
    assert set(divide(2**33, plan=MIXED).parts) >= {"keys and values", "window of 100"}


def test_work_space_grows_with_the_rows_of_a_step_and_of_logits():
    plan = WeightPlan(
        (
            WeightSpec("table", (1000, 64), "embedding"),
            WeightSpec("head", (1000, 64)),
            WeightSpec("up", (256, 64)),
            WeightSpec("norm", (64,), "vector"),
        )
    )
    assert work_bytes(plan, 0, 0) == SCRATCH
    assert work_bytes(plan, 10, 0) - SCRATCH == 10 * 256 * 4 * 4
    assert work_bytes(plan, 0, 2) - SCRATCH == 2 * 1000 * 4 * 10
    launches = 3 * 5 * LAYER_LAUNCHES * LAUNCH_BYTES
    assert graph_bytes(plan, 5, 3, 10, 2) == launches + 10 * 256 * 4 * 8 + 2 * 1000 * 4 * 10


def test_a_small_device_keeps_fewer_captured_steps():
    counts = [most_captures(gib * 2**30, 64, 61) for gib in (1, 24, 48, 80, 141)]
    assert counts == [FEWEST_CAPTURES, FEWEST_CAPTURES, 17, 45, 61]
    assert wanted_captures(64, 4096, 2048) == 61
    assert wanted_captures(64, 6144, 4096) == 73


@pytest.mark.parametrize("slots", [1, 8, 9, 40, 128, 129, 300])
def test_a_draft_of_any_lanes_fits_what_is_planned(slots):
    """Captured drafts have lanes to spare; above 128, one draft has as many as there are."""
    for lanes in range(1, slots + 1):
        rows = (draft_lanes(lanes) or lanes) * (1 + lane_depth(lanes, 15))
        assert rows <= draft_rows(slots, 15)

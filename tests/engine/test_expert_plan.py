"""How memory is divided between state and experts, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.engine import preparing
from kinfolk.engine.expert_plan import (
    LANDING_SHARE,
    ExpertPlan,
    ExpertRecords,
    landing_bytes,
    plan_experts,
    with_landing,
)
from kinfolk.engine.memory import MemoryPlan, plan_memory
from kinfolk.engine.preparing import prepare_model
from kinfolk.errors import CapacityError, SettingsError
from kinfolk.experts.placement import place_by_frequency
from kinfolk.experts.profile import ExpertProfile
from kinfolk.plans import Codec, ExpertStats, Paged, Placement, Section, StateLimits, StatePlan
from kinfolk.settings import load_settings

pytestmark = pytest.mark.cpu

RECORDS = ExpertRecords((4, 0, 4), (100, 0, 50))
"""600 bytes of experts."""

LIMITS = StateLimits(slots=1, checkpoints=0, blocks=(), context=1, step_rows=1)


def device(usable, core=100, least=40, most=200):
    """Memory where state needs ``least`` bytes and has a use for ``most``."""

    def divide(bays, homes):
        taken = core + (RECORDS.total if bays is None else bays)
        left = usable - taken
        if left < least:
            raise CapacityError(f"{usable} bytes less {taken} leave {left}")
        state = {"state": min(most, left)}
        return MemoryPlan(usable, {"weights": taken, **state}, LIMITS, state=state), homes

    return divide


def planned(budget, usable, *, is_host=False, host_free=10**12, form="packed", **options):
    settings = load_settings(expert_budget=budget, **options)
    return plan_experts(
        settings, RECORDS, device(usable), is_host=is_host, host_free=host_free, form=form
    )


def test_all_experts_are_near_if_they_fit():
    memory, homes, bays = planned("auto", 740)
    assert (homes, bays) == (0, None)
    assert memory.parts == {"weights": 700, "state": 40}


def test_what_does_not_fit_leaves_a_quarter_to_state_that_nobody_asked_for():
    memory, homes, bays = planned("auto", 500)
    assert homes == RECORDS.total
    assert bays == 300
    assert memory.state == {"state": 100}


def test_state_that_was_asked_for_comes_before_bays():
    """A quarter of 100 is less than the 40 that state needs."""
    _, _, bays = planned("auto", 200)
    assert 55 <= bays <= 60


def test_what_state_has_no_use_for_goes_to_bays():
    settings = load_settings(expert_budget="auto")
    divide = device(690, most=50)
    memory, _, bays = plan_experts(
        settings, RECORDS, divide, is_host=False, host_free=10**12, form="packed"
    )
    assert bays == 540
    assert memory.total == 690


@given(usable=st.integers(140, 900), most=st.integers(40, 400))
def test_no_plan_is_larger_than_the_device(usable, most):
    memory, _, bays = plan_experts(
        load_settings(expert_budget="auto"),
        RECORDS,
        device(usable, most=most),
        is_host=False,
        host_free=10**12,
        form="packed",
    )
    assert memory.total <= usable
    assert bays is None or 0 <= bays <= RECORDS.total


@pytest.mark.parametrize(
    ("budget", "bays"), [("50%", 300), ("0%", 0), ("0", 0), ("100%", None), ("all", None)]
)
def test_a_budget_that_was_asked_for_is_taken(budget, bays):
    assert planned(budget, 2000)[2] == bays


def test_less_than_no_bay_is_refused_with_the_arithmetic():
    with pytest.raises(CapacityError, match="139 bytes less 100 leave 39"):
        planned("auto", 139)


def test_experts_that_must_all_be_near_are_refused_if_they_do_not_fit():
    with pytest.raises(CapacityError, match="500 bytes less 700"):
        planned("all", 500)


MIB = 2**20
STATE = StatePlan((Paged((Section("k", 2, 64, Codec("f32")),)),))


@pytest.mark.parametrize(
    ("taken", "is_host", "told"),
    [
        # A device without room for the core, and not even for one bay.
        (
            {"weights": 90 * MIB, "experts": 0, "homes": 200 * MIB},
            False,
            r"weights 0.09 .*experts 0.00 .*0.10 GiB can be used. A smaller quantisation",
        ),
        (
            {"weights": 20 * MIB, "experts": 70 * MIB, "homes": 200 * MIB},
            False,
            r"weights 0.02 .*experts 0.07 .*0.10 GiB can be used. Lower --expert-budget",
        ),
        # State that was asked for does not fit beside bays that were.
        (
            {"weights": 20 * MIB, "experts": 50 * MIB, "homes": 200 * MIB},
            False,
            r"context of 65536 needs .*lower --context, --slots or --checkpoints, or "
            r"--expert-budget \(0.10 GiB less weights 0.02 .*experts 0.05",
        ),
        (
            {"weights": 20 * MIB, "experts": 30 * MIB, "homes": 60 * MIB},
            True,
            r"experts 0.03 \+ homes of experts 0.06.*Use --expert-budget all",
        ),
        (
            {"weights": 20 * MIB, "experts": 90 * MIB},
            True,
            r"experts 0.09, and 0.10 GiB can be used. A smaller quantisation",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_parts_and_the_flag_to_change(taken, is_host, told):
    wanted = StateLimits(slots=4, checkpoints=0, blocks=(), context=0, step_rows=128)
    with pytest.raises(CapacityError, match=told):
        plan_memory(
            usable=100 * MIB,
            work=10 * MIB,
            graphs=5 * MIB,
            is_host=is_host,
            plan=STATE,
            wanted=wanted,
            model_context=65536,
            asked=65536,
            flexible=frozenset(),
            **taken,
        )


def test_a_host_has_no_other_memory_for_experts():
    with pytest.raises(CapacityError, match="500 bytes less 700"):
        planned("auto", 500, is_host=True)


def test_host_memory_is_checked_and_what_the_user_says_is_believed():
    with pytest.raises(
        CapacityError, match=r"--expert-budget 50%.*--expert-budget all.*--expert-h"
    ):
        planned("50%", 2000, host_free=599)
    with pytest.raises(CapacityError, match=r"^not all experts fit .*use a smaller.*--expert-h"):
        planned("auto", 500, host_free=599)
    assert planned("50%", 2000, host_free=599, expert_host=1)[2] == 300
    with pytest.raises(CapacityError, match="--expert-host is 1e-07"):
        planned("50%", 2000, expert_host=1e-7)


def test_blocks_of_a_file_cannot_be_read_from_host_memory():
    with pytest.raises(SettingsError, match="--weights packed or dense"):
        planned("50%", 2000, form="blocks")
    assert planned("50%", 2000, form="blocks", is_host=True)[2] == 300


@pytest.mark.parametrize("value", ["", "most", "-1", "101%", "nan", "inf", "4GiB", "%"])
def test_a_budget_that_means_nothing_is_refused(value):
    with pytest.raises(SettingsError, match=r"--expert-budget: must be auto, all, GiB"):
        load_settings(expert_budget=value)


def test_bytes_of_a_token_are_those_of_the_experts_that_are_away():
    plan = ExpertPlan(RECORDS, Placement(((0, 1, 2), (), (3,))), top_k=2)
    assert plan.partial
    assert plan.worst_token_bytes == 1 * 100 + 2 * 50
    assert (plan.device_bytes, plan.host_bytes) == (350, 600)
    assert plan.usual_token_bytes is None
    profile = ExpertProfile(Path("unused"), "model", RECORDS.layers)
    profile.add(((1, 1, 1, 1), (), (0, 0, 0, 9)), 2)
    counted = ExpertPlan(RECORDS, plan.placement, top_k=2, profile=profile)
    assert counted.usual_token_bytes == 2 * 100 / 4
    near = ExpertPlan(RECORDS, Placement(((0, 1, 2, 3), (), (0, 1, 2, 3))), top_k=2)
    assert not near.partial
    assert near.host_bytes == near.worst_token_bytes == 0


@given(
    layers=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    size=st.sampled_from([256, 512]),
    share=st.integers(0, 100),
    busy=st.integers(0, 11),
)
def test_near_and_landing_bays_together_take_no_more_than_the_budget(layers, size, share, busy):
    """Also where a profile gives most of the bays to some of the layers."""
    sizes = ExpertRecords(tuple(layers), tuple(size * (1 + n % 2) for n in layers))
    counts = tuple(tuple(9 if i <= busy else 0 for _ in range(n)) for i, n in enumerate(layers))
    stats = ExpertStats(sizes.layers, counts, sizes.nbytes)
    room = sizes.total * share // 100

    def ask(budget):
        assert 0 <= budget <= room
        return place_by_frequency(stats, budget)

    placement, landing = with_landing(sizes, room, ask)
    plan = ExpertPlan(sizes, placement, landing=landing)
    assert plan.device_bytes + landing <= room
    # Every layer has room for all that may be far in it, or none has any.
    assert landing in (0, landing_bytes(sizes, placement))
    if not plan.partial or share == 0:
        assert landing == 0


def test_landing_bays_of_many_layers_cost_each_of_them_a_few_near_ones():
    sizes = ExpertRecords((256,) * 40, (1000,) * 40)
    stats = ExpertStats(sizes.layers, None, sizes.nbytes)
    ask = partial(place_by_frequency, stats)
    for share, fewer in ((25, 5), (50, 4), (75, 2)):
        usual = 256 * share // 100
        room = sizes.total * share // 100
        placement, landing = with_landing(sizes, room, ask)
        least = min(map(len, placement.bays))
        assert usual - fewer <= least
        assert landing == (256 - least) * 1000
        assert landing <= LANDING_SHARE * room
        # Beside the budget they cost none.
        placement, beside = with_landing(sizes, room, ask, sizes.total)
        assert beside == landing_bytes(sizes, placement) < landing
        assert min(map(len, placement.bays)) == usual


def test_with_little_room_there_are_near_bays_alone():
    sizes = ExpertRecords((256,) * 40, (1000,) * 40)
    stats = ExpertStats(sizes.layers, None, sizes.nbytes)
    for room in (0, sizes.total // 20):
        expected = place_by_frequency(stats, room)
        assert with_landing(sizes, room, partial(place_by_frequency, stats)) == (expected, 0)


def test_landing_bays_come_on_top_of_a_share_if_there_is_room_and_are_within_bytes():
    def parts(budget, usable):
        divided = []

        def divide(bays, homes):
            divided.append(bays)
            return device(usable)(bays, homes)

        settings = load_settings(expert_budget=budget)
        host = {"is_host": False, "host_free": 10**12, "form": "packed"}
        found = plan_experts(settings, RECORDS, divide, **host, landing=lambda bays: bays // 10)
        return found[2], divided

    assert parts("50%", 500) == (300, [330])
    assert parts("50%", 450) == (300, [330, 300])
    gib = 300 / 2**30
    assert parts(str(gib), 500) == (300, [300])


def test_a_plan_of_a_file_has_parts_for_bays_and_homes(cases, registry):
    settings = load_settings(device="cpu", context=64, slots=1, expert_budget="75%", memory=1)
    ready = prepare_model(cases / "laguna.gguf", settings, registry)
    parts, experts = ready.memory.parts, ready.experts
    assert parts["homes of experts"] == experts.sizes.total
    assert experts.landing > 0
    taken = experts.device_bytes + experts.landing
    assert experts.device_bytes <= 0.75 * experts.sizes.total
    assert taken <= parts["experts"] == 0.75 * experts.sizes.total + experts.landing
    whole = prepare_model(
        cases / "laguna.gguf", settings.model_copy(update={"expert_budget": "all"}), registry
    )
    assert "experts" not in whole.memory.parts
    assert parts["weights"] < whole.memory.parts["weights"]


def test_homes_of_experts_are_taken_from_free_host_memory_once(cases, registry, monkeypatch):
    """What is left of it is for checkpoints that leave the device."""
    free = 10 * 2**30
    place = torch.device("cuda"), torch.float32, 2**34
    monkeypatch.setattr(preparing, "_place", lambda settings, there: place)
    monkeypatch.setattr(preparing, "host_memory", lambda: free)
    settings = load_settings(context=64, slots=1, expert_budget="50%")
    ready = prepare_model(cases / "qwen35moe.gguf", settings, registry)
    homes = ready.experts.host_bytes
    assert homes > 0
    assert ready.memory.limits.host_bytes == (free - homes) // 4

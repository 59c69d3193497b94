"""``--kvflash-policy`` and ``--kvflash-layers``: what is chosen, what it takes, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec
from kinfolk.engine.kvflash import describe
from kinfolk.engine.loading import load_model
from kinfolk.engine.preparing import prepare_model
from kinfolk.engine.sizing import size_state, state_bytes
from kinfolk.errors import CapacityError, SettingsError, UnsupportedModelError
from kinfolk.loader import Provided
from kinfolk.nn.queries import QueryKind
from kinfolk.plans import (
    Codec,
    Paged,
    PoolRule,
    Recurrent,
    RecurrentTensor,
    ScoredLayers,
    Section,
    SlotMapping,
    StateLimits,
    StatePlan,
)
from kinfolk.settings import load_settings
from kinfolk.state.geometry import chunks_for

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]


def options(**settings):
    fixed = {"device": "cpu", "dtype": "f32", "context": 3072, "kvflash": 640, "kvflash_burst": 2}
    return load_settings(**{**fixed, **settings})


@pytest.fixture
def prepare(cases, registry):
    """``prepare(family, registry, **settings)``: a planned model."""
    opened = []

    def planned(family="qwen35", registry=registry, **settings):
        opened.append(prepare_model(cases / f"{family}.gguf", options(**settings), registry))
        return opened[-1]

    yield planned
    for each in opened:
        each.file.close()


class NothingStays:
    @hookimpl
    def map_slots(self, plan, residency):
        return SlotMapping(tuple(PoolRule(window, 0, 2) for window in plan.windows))


def nothing_stays(info):
    return NothingStays()


@pytest.fixture
def with_policy(registry):
    """The registry with a policy ``loose`` that lets the first chunk go."""
    spec = PolicySpec("loose", f"{__name__}:nothing_stays")
    return replace(
        registry, policies={**registry.policies, "loose": Provided(spec, "test", "a test")}
    )


def test_chunks_are_scored_by_attention_unless_the_user_says_lru(prepare):
    ready = prepare()
    assert ready.residency.scorers == ("qk",)
    assert ready.memory.limits.scored is not None
    assert "chunks are chosen by qk" in describe(ready.residency, ready.memory)
    ready = prepare(kvflash_policy="lru")
    assert ready.residency.scorers == ()
    assert ready.memory.limits.scored is None
    assert "its first and its last chunks are kept" in describe(ready.residency, ready.memory)


def test_nothing_is_kept_for_scores_without_a_budget(prepare):
    for settings in ({"kvflash": "off"}, {"kvflash": 3072}):
        limits = prepare(**settings).memory.limits
        assert limits.scored is None
        assert limits.digests == 0


def test_layers_are_as_many_as_the_user_asks_for(prepare):
    assert prepare("laguna", kvflash_layers=1).memory.limits.scored.layers == (4,)
    assert prepare("laguna", kvflash_layers=2).memory.limits.scored.layers == (0, 4)
    with pytest.raises(SettingsError, match="3 layers cannot score chunks: 1 to 2 can"):
        prepare("laguna", kvflash_layers=3)
    with pytest.raises(SettingsError, match="--kvflash-layers is for --kvflash-policy qk, not lru"):
        prepare("laguna", kvflash_layers=1, kvflash_policy="lru")


def test_layers_of_a_drafter_score_nothing(prepare):
    """The drafter's own layers stand behind those of the model."""
    ready = prepare()
    assert max(ready.memory.limits.scored.layers) < ready.config.layers


@pytest.mark.parametrize("family", FAMILIES)
def test_the_planner_knows_how_large_queries_are(cases, registry, family):
    """By the file's number of heads, as the built model has it."""
    loaded = load_model(cases / f"{family}.gguf", options(), registry)
    scored, kind = loaded.limits.scored, loaded.queries
    dim = loaded.plan.paged(scored.layers[0]).section("k").dim
    assert scored.slot_bytes == 8 * len(scored.layers) * kind.heads * dim * kind.dtype.itemsize


def test_a_first_chunk_that_may_leave_is_refused_or_said(prepare, with_policy, caplog):
    """Keys are compressed by the mean of the first chunk's."""
    settings = {"registry": with_policy, "policy": ("loose",)}
    assert prepare(**settings).residency.scorers == ()
    assert "--kvflash-policy is lru, the first and the last chunks are kept" in caplog.text
    with pytest.raises(SettingsError, match="hook map_slots lets that leave the device; use"):
        prepare(kvflash_policy="qk", **settings)


def test_a_model_whose_layers_keep_unlike_queries_is_refused(
    cases, registry, monkeypatch: pytest.MonkeyPatch
):
    scales = iter(range(1, 99))

    def unlike(heads, dtype, scale):
        return QueryKind(heads, dtype, scale * next(scales))

    monkeypatch.setattr("kinfolk.nn.attention.QueryKind", unlike)
    with pytest.raises(UnsupportedModelError, match=r"layers 0, 4 of family 'laguna' do not all"):
        load_model(cases / "laguna.gguf", options(), registry)


# -- memory ---------------------------------------------------------------------------------------


PLAN = StatePlan(
    (
        Recurrent((RecurrentTensor("s", (64, 64)),)),
        Paged(tuple(Section(name, 2, 64, Codec("f16")) for name in "kv")),
        Paged(tuple(Section(name, 2, 64, Codec("f16")) for name in "kv"), 128),
    )
)


@given(
    slots=st.integers(1, 16),
    resident=st.integers(8, 60),
    context=st.integers(64 * 61, 64 * 900),
    room=st.floats(0, 1.2),
    scored=st.builds(
        ScoredLayers,
        st.just((1,)),
        chunk_bytes=st.integers(0, 60_000),
        slot_bytes=st.integers(0, 10**6),
        work_bytes=st.integers(0, 10**6),
    ),
)
def test_whatever_the_room_the_state_fits_and_there_are_places_for_all_chunks(
    slots, resident, context, room, scored
):
    wanted = StateLimits(slots, 2, (), context, 512, resident=resident, scored=scored)
    most = sum(state_bytes(PLAN, size_state(PLAN, wanted, context, 2**50, context)).values())
    budget = int(most * room)
    try:
        limits = size_state(PLAN, wanted, context, budget, context)
    except CapacityError:
        least = StateLimits(
            slots, 2, (resident, 12), context, 512, resident=resident, scored=scored
        )
        assert sum(state_bytes(PLAN, least).values()) > budget - resident * 64
        return
    assert sum(state_bytes(PLAN, limits).values()) <= budget
    running = limits.blocks[0] // resident
    assert limits.digests >= running * chunks_for(context)


def test_what_scores_take_is_in_the_plan(prepare):
    with_scores, without = prepare(preempt=True), prepare(kvflash_policy="lru")
    limits = with_scores.memory.limits
    expected = limits.digests * limits.scored.chunk_bytes + limits.scored.work_bytes
    expected += (1 + 2 * limits.slots) * limits.scored.slot_bytes
    assert with_scores.memory.parts["scores of chunks"] == expected > 0
    assert "scores of chunks" not in without.memory.parts

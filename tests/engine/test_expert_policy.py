"""Policies that swap experts between steps, and the profile that is kept of their uses."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from threading import Event
from typing import Any, ClassVar

import pytest

from kinfolk.descriptors import PolicySpec
from kinfolk.engine.engine import Engine
from kinfolk.engine.expert_reports import REPORT_STEPS
from kinfolk.engine.loading import load_model
from kinfolk.engine.preparing import prepare_model
from kinfolk.errors import HookValueError, SettingsError
from kinfolk.experts.cache import LayerExperts
from kinfolk.hookspecs import hookimpl
from kinfolk.plans import ExpertSwap, ExpertSwaps, Placement
from kinfolk.registry import Provided, Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings

pytestmark = pytest.mark.cpu

PROMPT = (5, 300, 71, 9, 640)
LIMITS = {"context": 256, "step_tokens": 64, "slice": 32}


class BringsTheFirst:
    """A policy that wants the least expert of each layer that is far, in its first bay."""

    asked: ClassVar[list[Any]] = []

    @hookimpl
    def swap_experts(self, use, residency):
        self.asked.append((use, residency))
        swaps = []
        for layer, (experts, bays) in enumerate(
            zip(residency.experts, residency.bays, strict=True)
        ):
            far = [expert for expert in range(experts) if expert not in bays]
            if bays and far:
                swaps.append(ExpertSwap(layer, far[0], 0))
        return ExpertSwaps(tuple(swaps))


class Fails:
    @hookimpl
    def swap_experts(self, use, residency):
        raise RuntimeError("no opinion")


class SwapsTwice:
    """A policy that gives one bay to two experts."""

    @hookimpl
    def swap_experts(self, use, residency):
        layer = next(layer for layer, bays in enumerate(residency.bays) if bays)
        bays = residency.bays[layer]
        far = [e for e in range(residency.experts[layer]) if e not in bays]
        return ExpertSwaps((ExpertSwap(layer, far[0], 0), ExpertSwap(layer, far[1], 0)))


class PlacesTwice:
    """A policy that has one expert in two bays."""

    @hookimpl
    def place_experts(self, stats, budget):
        return Placement(tuple((0, 0) if experts else () for experts in stats.layers))


def create(info):
    return BringsTheFirst()


def create_failing(info):
    return Fails()


def create_swapping_twice(info):
    return SwapsTwice()


def create_placing_twice(info):
    return PlacesTwice()


@pytest.fixture
def opened(cases):
    def run(policy="", **settings):
        registry = Registry.discover(load_settings())
        if policy:
            spec = PolicySpec("swaps", f"{__name__}:{policy}")
            registry = replace(registry, policies={"swaps": Provided(spec, "test", "test")})
            settings["policy"] = "swaps"
        fixed = {"device": "cpu", "dtype": "f32", "context": 256, "slots": 2, "draft": "off"}
        options = load_settings(**{**fixed, "expert_budget": "30%", **settings})
        return load_model(cases / "laguna.gguf", options, registry)

    return run


def answer(running, tokens=REPORT_STEPS + 8):
    found = []
    for event in running.submit(Request("r", PROMPT, tokens)):
        found += getattr(event, "tokens", ())
    return found, event


def test_swaps_of_a_policy_are_executed_and_change_no_token(opened):
    with Engine(opened(expert_swap="on"), SchedulerLimits(slots=1, **LIMITS)) as running:
        usual, _ = answer(running)
    BringsTheFirst.asked.clear()
    far = opened("create")
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        found, event = answer(running)
        assert event.error is None
        running.check_integrity()
        assert running.stats()["swap_experts_failures"] == 0
    assert found == usual
    (use, residency), *_ = BringsTheFirst.asked
    assert use.steps == REPORT_STEPS
    top_k = far.source.ready.experts.top_k
    rows = REPORT_STEPS - 1 + len(PROMPT)
    for layer, uses in enumerate(use.uses):
        assert sum(uses) == (rows * top_k if residency.experts[layer] else 0)
    assert [len(bays) for bays in residency.bays] == list(far.source.ready.experts.bays)


def test_a_swap_that_breaks_in_the_middle_costs_its_step_alone(opened, monkeypatch):
    far = opened("create")
    swap, left = LayerExperts.swap, [2]

    def breaks(layer, expert, bay):
        left[0] -= 1
        swap(layer, expert, bay)
        if left[0] == 0:
            layer.near[bay][:100] = 0xFF
            layer.bay_of_expert[expert] = layer.bays + expert
            raise RuntimeError("a cable was pulled")

    monkeypatch.setattr(LayerExperts, "swap", breaks)
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        usual, event = answer(running)
        assert "a cable was pulled" in event.error
        running.check_integrity()
        assert len(usual) >= REPORT_STEPS
        assert answer(running, 8)[0] == usual[:8]
        running.check_integrity()


@pytest.mark.parametrize(
    ("policy", "steps", "told"),
    [
        ("create_failing", 2 * REPORT_STEPS, "no opinion"),
        ("create_swapping_twice", REPORT_STEPS, "another swap takes that bay"),
    ],
)
def test_a_policy_that_fails_harms_no_request(opened, caplog, monkeypatch, policy, steps, told):
    monkeypatch.setattr("kinfolk.engine.expert_policy.SETTLED_SECONDS", 3600.0)
    with Engine(opened(policy), SchedulerLimits(slots=1, **LIMITS)) as running:
        _, event = answer(running, steps + 8)
        assert event.error is None
        assert running.stats()["swap_experts_failures"] == steps // REPORT_STEPS
        running.check_integrity()
    assert caplog.text.count(told) == 1


def test_a_policy_that_places_an_expert_twice_is_named_before_weights_are_read(opened, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr("kinfolk.engine.loading.load_weights")
        with pytest.raises(HookValueError, match=r"expert 0 in bay 1.*policy 'swaps'"):
            opened("create_placing_twice")
    opened().experts.check_integrity()


def test_bays_that_stay_are_not_asked_about(opened):
    BringsTheFirst.asked.clear()
    with Engine(opened("create", expert_swap="off"), SchedulerLimits(slots=1, **LIMITS)) as running:
        answer(running)
    assert BringsTheFirst.asked == []


def test_a_profile_is_written_at_the_end_and_places_the_most_used_experts(opened, tmp_path):
    path = tmp_path / "profile.json"
    far = opened(expert_profile=path)
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        answer(running)
        uses, rows = running.expert_use(), running.stats()["rows"]
    kept = json.loads(path.read_text())
    assert kept["tokens"] == rows
    assert {i: tuple(row) for i, row in enumerate(kept["counts"]) if row} == dict(uses)
    again = opened(expert_profile=path)
    for layer, each in again.experts.layers.items():
        counts = uses[layer]
        best = sorted(counts, reverse=True)[: each.bays]
        assert sorted((counts[expert] for expert in each.placed), reverse=True) == best
    with Engine(again, SchedulerLimits(slots=1, **LIMITS)) as running:
        answer(running)
    assert json.loads(path.read_text())["tokens"] == 2 * rows


@pytest.mark.parametrize(
    "options", [{"expert_budget": "all"}, {"expert_budget": "30%", "expert_swap": "off"}]
)
def test_a_profile_can_be_made_where_bays_stay(opened, tmp_path, options):
    """On a device with room for all experts, say. It is that of any other residency."""
    profiles = []
    for place, chosen in enumerate((options, {"expert_budget": "30%"})):
        path = tmp_path / f"{place}.json"
        loaded = opened(expert_profile=path, **chosen)
        before = [layer.expert_of_bay.tolist() for layer in loaded.experts.layers.values()]
        with Engine(loaded, SchedulerLimits(slots=1, **LIMITS)) as running:
            tokens, _ = answer(running, 8)
            running.check_integrity()
            if place == 0:
                after = [layer.expert_of_bay.tolist() for layer in loaded.experts.layers.values()]
                assert after == before
                assert running.expert_use()
                assert running.stats()["expert_fetched"] == 0
        profiles.append((json.loads(path.read_text()), tokens))
    assert profiles[0] == profiles[1]


def test_experts_that_are_counted_are_planned_as_records(cases, tmp_path):
    registry, path = Registry.discover(load_settings()), tmp_path / "profile.json"
    plans = [
        prepare_model(cases / "laguna.gguf", load_settings(device="cpu", **options), registry)
        for options in ({}, {"expert_profile": path})
    ]
    usual, counted = (each.memory.parts for each in plans)
    sizes = plans[1].experts.sizes
    assert counted["experts"] == sizes.total
    assert counted.get("homes of experts", 0) == 0
    assert counted["weights"] < usual["weights"]
    assert "uses of" in plans[1].experts.describe()
    assert not plans[0].experts.in_records


def test_steps_go_on_while_the_disk_does_not_answer(opened, tmp_path, monkeypatch):
    """The file is whole at the end, with what was counted meanwhile."""
    asked, answers, late = Event(), Event(), []
    real = os.fsync

    def fsync(descriptor):
        asked.set()
        late.append(not answers.wait(20))
        real(descriptor)

    monkeypatch.setattr("kinfolk.experts.profile.SAVE_SECONDS", 0.0)
    path = tmp_path / "profile.json"
    with Engine(opened(expert_profile=path), SchedulerLimits(slots=1, **LIMITS)) as running:
        monkeypatch.setattr("kinfolk.experts.profile.os.fsync", fsync)
        answer(running)
        assert asked.wait(60)
        before = running.stats()["steps"]
        answer(running)
        assert running.stats()["steps"] - before > REPORT_STEPS
        assert not path.exists()
        answers.set()
        rows = running.stats()["rows"]
    assert not any(late)
    assert json.loads(path.read_text())["tokens"] == rows
    assert list(tmp_path.iterdir()) == [path]


def test_an_engine_at_rest_saves_what_came_since_the_last_report(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("kinfolk.experts.profile.SAVE_SECONDS", 0.2)
    path = tmp_path / "profile.json"
    with Engine(opened(expert_profile=path), SchedulerLimits(slots=1, **LIMITS)) as running:
        for _ in range(2):
            answer(running, 4)
            rows, end = running.stats()["rows"], time.monotonic() + 60
            while not path.exists() or json.loads(path.read_text())["tokens"] < rows:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert json.loads(path.read_text())["tokens"] == rows


def test_a_policy_is_not_asked_about_steps_that_were_not(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("kinfolk.experts.profile.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("kinfolk.engine.expert_policy._LEAST_SECONDS", 0.01)
    monkeypatch.setattr("kinfolk.engine.expert_policy.SETTLED_SECONDS", 0.01)
    BringsTheFirst.asked.clear()
    far = opened("create", expert_profile=tmp_path / "profile.json")
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        answer(running, 4)
        end = time.monotonic() + 30
        while not BringsTheFirst.asked:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)
    assert len(BringsTheFirst.asked) == 1
    assert BringsTheFirst.asked[0][0].steps > 0


def test_a_profile_that_cannot_be_written_is_refused_before_weights_are_read(cases, monkeypatch):
    settings = load_settings(device="cpu", expert_profile="/proc/profile.json")
    how = cases / "laguna.gguf", settings, Registry.discover(load_settings())
    with monkeypatch.context() as patch:
        patch.delattr("kinfolk.engine.loading.load_weights")
        with pytest.raises(SettingsError, match=r"--expert-profile /proc/profile\.json: no file"):
            load_model(*how)
    load_model(*how, keep_profile=False).file.close()
    prepare_model(*how).file.close()


def test_where_nothing_counts_there_are_no_counters(opened):
    with Engine(opened(expert_swap="off"), SchedulerLimits(slots=1, **LIMITS)) as running:
        answer(running, 4)
        assert running.expert_use() == {}
        names = {name for name in running.stats() if name.startswith("expert_")}
        assert names == {"expert_bays", "expert_device_bytes", "expert_host_bytes"}


def test_a_profile_of_another_model_is_refused_before_weights_are_read(opened, tmp_path, cases):
    path = tmp_path / "profile.json"
    with Engine(opened(expert_profile=path), SchedulerLimits(slots=1, **LIMITS)) as running:
        answer(running, 4)
    kept = path.read_bytes()
    settings = load_settings(device="cpu", expert_budget="30%", expert_profile=path)
    with pytest.raises(SettingsError, match="'fingerprint'"):
        load_model(cases / "qwen35moe.gguf", settings, Registry.discover(load_settings()))
    assert path.read_bytes() == kept

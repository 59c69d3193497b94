"""Engines and models whose experts are not all on the device."""

from __future__ import annotations

import time

import pytest
import torch
from expert_files import write_experts

from kinfolk.engine import expert_policy
from kinfolk.engine.engine import Engine
from kinfolk.engine.expert_reports import REPORT_STEPS
from kinfolk.engine.loading import load_model
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.engine.score import logits
from kinfolk.plans import ExpertSwap
from kinfolk.quant.tensor import QuantTensor
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import StepPlan
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.testing.driver import Driver
from kinfolk_kernels.fetch.op import FETCHED
from kinfolk_kernels.planes import PlanesStack

pytestmark = pytest.mark.cpu

CASES = ("qwen35moe", "laguna", "gemma4moe")
TOKENS = [5, 300, 71, 9, 640, 2, 33, 500, 17, 90, 4, 4]
KINDS = {"gate": "Q4_0", "up": "Q5_0", "down": "Q8_0", "gate_up": "Q5_0"}


@pytest.fixture(scope="module")
def quantised(cases, tmp_path_factory):
    """``quantised(case)``: a reference case whose experts are in three formats."""
    folder = tmp_path_factory.mktemp("experts")

    def change(name, numbers):
        return numbers, KINDS[name.split(".ffn_")[1].removesuffix("_exps.weight")]

    def make(case):
        path = folder / f"{case}.gguf"
        return path if path.exists() else write_experts(cases / path.name, path, change)

    return make


@pytest.fixture(scope="module")
def opened(registry):
    def run(path, **settings):
        fixed = {"device": "cpu", "dtype": "f32", "context": 256, "slots": 2, "draft": "off"}
        return load_model(path, load_settings(**{**fixed, **settings}), registry)

    return run


def scores(model, rows):
    return torch.cat(list(logits(model, TOKENS, chunk=rows)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["dense", "blocks", "packed"])
@pytest.mark.parametrize("op", ["experts=torch", "experts=reference"])
def test_every_form_of_experts_gives_the_same_bits_anywhere(opened, quantised, case, form, op):
    path = quantised(case)
    usual, far = (
        opened(path, weights=form, op=op, expert_budget=budget) for budget in ("all", "25%")
    )
    assert usual.experts is None
    assert far.experts is not None
    for rows in (1, 5):
        assert torch.equal(scores(usual, rows), scores(far, rows))
    far.experts.check_integrity()
    layer = next(iter(far.experts.layers.values()))
    stacks = [layer.layout.stack(name, layer.far) for name in layer.layout.matrices]
    kept = {"dense": torch.Tensor, "blocks": QuantTensor, "packed": PlanesStack}[form]
    assert any(isinstance(stack, kept) for stack in stacks)
    fetched = sum(int(each.traffic[FETCHED]) for each in far.experts.layers.values())
    assert fetched > 0


def test_without_swaps_bays_stay_and_nothing_is_counted(opened, quantised):
    path = quantised("laguna")
    far = opened(path, expert_budget="40%", expert_swap="off")
    before = {i: each.expert_of_bay.tolist() for i, each in far.experts.layers.items()}
    assert torch.equal(scores(far, 3), scores(opened(path), 3))
    assert before == {i: each.expert_of_bay.tolist() for i, each in far.experts.layers.items()}
    assert not far.experts.counts.any()


@pytest.mark.parametrize(
    ("case", "budget", "swap"),
    [("laguna", "40%", "on"), *((case, "75%", "on") for case in CASES), ("laguna", "75%", "off")],
)
def test_steps_longer_than_recorded_ones_leave_bays_alone(opened, quantised, case, budget, swap):
    """They read experts where they are or, where there is room, in landing bays."""
    path, tokens = quantised(case), TOKENS * 50
    found = []
    for settings in ({}, {"expert_budget": budget, "expert_swap": swap}):
        drive = Driver(opened(path, context=1280, **settings))
        experts = drive.loaded.experts
        poison(experts)
        lease = drive.open(1280)
        found.append(drive.feed({lease: tokens}, rows=600)[lease])
    assert torch.equal(*found)
    assert experts is not None
    assert not experts.counts.any()
    layers = experts.layers.values()
    assert all(each.expert_of_bay.tolist() == [*each.placed] for each in layers)
    assert {landed(each) > 0 for each in layers} == {budget == "75%"}
    drive.feed({lease: tokens[:512]}, rows=512)
    assert bool(experts.counts.any()) == (swap == "on")


def poison(experts):
    """Let landing bays hold no numbers."""
    for each in () if experts is None else experts.layers.values():
        if each.landing is not None:
            each.landing.records.fill_(0xFF)


def landed(layer):
    """Landing bays that hold an expert of the last layer that used them."""
    return 0 if layer.landing is None else int((layer.landing.bay_of_expert >= layer.bays).sum())


@pytest.mark.parametrize(
    ("swap", "rows", "lands"),
    [("off", 15, False), ("off", 16, True), ("on", 48, True), ("on", 3, False)],
)
def test_what_recorded_steps_cannot_fetch_lands_if_they_have_enough_rows(
    opened, quantised, swap, rows, lands
):
    path = quantised("laguna")
    far = opened(path, expert_budget="75%", expert_swap=swap)
    poison(far.experts)
    assert torch.equal(long_scores(far, rows), long_scores(opened(path), rows))
    layers = far.experts.layers.values()
    assert all(each.landing is not None for each in layers)
    assert (sum(map(landed, layers)) > 0) == lands
    far.experts.check_integrity()


def long_scores(model, rows):
    return torch.cat(list(logits(model, TOKENS * 4, chunk=rows)))


LIMITS = {"context": 256, "step_tokens": 64, "slice": 32}


def answers(running, count=4):
    tickets = [
        running.submit(Request(f"r{i}", tuple(TOKENS[: 3 + 2 * i]), 10)) for i in range(count)
    ]
    found = []
    for ticket in tickets:
        tokens = []
        for event in ticket:
            tokens += getattr(event, "tokens", ())
        found.append((tokens, event))
    return found


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_counters_count_the_real_rows_and_stay_flat(opened, quantised, graphs):
    far = opened(quantised("qwen35moe"), expert_budget="30%", graphs=graphs)
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        answers(running)
        first, stats = running.expert_use(), running.stats()
        layers = len(far.experts.layers)
        top_k = far.source.ready.experts.top_k
        assert stats["expert_uses"] == stats["rows"] * layers * top_k
        assert all(sum(uses) == stats["rows"] * top_k for uses in first.values())
        chosen = stats["expert_hits"] + stats["expert_fetched"] + stats["expert_far"]
        assert 0 < chosen <= stats["expert_uses"]
        answers(running)
        second, later = running.expert_use(), running.stats()
        assert all(sum(second[i]) > sum(first[i]) for i in first)
        for flat in ("captures", "allocations", "expert_bays", "expert_host_bytes"):
            assert later[flat] == stats[flat]
        assert later["waits"] - stats["waits"] == later["steps"] - stats["steps"]
        running.check_integrity()


def test_a_report_comes_with_every_64th_step(opened, quantised, monkeypatch):
    monkeypatch.setattr(expert_policy, "SETTLED_SECONDS", 3600.0)
    far = opened(quantised("qwen35moe"), expert_budget="30%")
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        ticket = running.submit(Request("long", tuple(TOKENS), REPORT_STEPS - 2))
        for _ in ticket:
            pass
        assert running.stats()["expert_uses"] == 0
        answers(running)
        assert running.stats()["expert_uses"] > 0
        assert running.stats()["waits"] == running.stats()["steps"]


def test_an_engine_at_rest_knows_all_uses(opened, quantised):
    far = opened(quantised("qwen35moe"), expert_budget="30%")
    layers, top_k = len(far.experts.layers), far.source.ready.experts.top_k
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        for count in (1, 2):
            for _ in running.submit(Request(f"{count}", tuple(TOKENS), 5)):
                pass
            end = time.monotonic() + 20
            while running.stats()["expert_uses"] != running.stats()["rows"] * layers * top_k:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_a_model_with_all_experts_near_has_no_counters(opened, quantised):
    usual = opened(quantised("qwen35moe"))
    with Engine(usual, SchedulerLimits(slots=1, **LIMITS)) as running:
        answers(running, 1)
        assert running.expert_use() == {}
        assert not any(name.startswith("expert_") for name in running.stats())


def test_parking_gives_the_host_memory_back(opened, quantised):
    path = quantised("laguna")
    far = opened(path, expert_budget="30%")
    with Engine(far, SchedulerLimits(slots=1, **LIMITS)) as running:
        before = [tokens for tokens, _ in answers(running)]
        homes = next(iter(far.experts.layers.values())).far
        assert homes.any()
        running.park()
        assert not homes.any()
        assert running.loaded.experts is None
        running.unpark()
        assert [tokens for tokens, _ in answers(running)] == before
        running.check_integrity()


def test_swaps_of_a_plan_are_executed_before_its_rows(opened, quantised):
    far = opened(quantised("laguna"), expert_budget="30%")
    number, layer = next(iter(far.experts.layers.items()))
    away = next(e for e in range(layer.count) if e not in layer.placed)
    runner = ModelRunner(far, far.new_state()[1])
    runner.run(StepPlan(1, (), (), swaps=(ExpertSwap(number, away, 1),)), {})
    assert layer.expert_of_bay.tolist()[1] == away
    runner.check_integrity()

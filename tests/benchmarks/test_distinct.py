"""Counting the experts that a step reads, on a CPU."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import pytest
import torch

from kinfolk.cli.bench_runs import Workload
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.nn.moe import MoE
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


@pytest.fixture(scope="module")
def distinct(repo):
    return runpy.run_path(str(repo / "benchmarks/distinct.py"))


def routes(distinct, model):
    return [moe.route for moe in distinct["_mixtures"](model, set())]


def counted(distinct, path, sequences):
    settings = load_settings(device="cpu", dtype="f32", context=64, slots=4)
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    with Runtime.open(path, settings, registry) as runtime:
        loaded = runtime.loaded
        before = routes(distinct, loaded.model)
        work = Workload(8, 8, sequences, 0.0)
        found = distinct["distinct_experts"](runtime, scheduler_limits(loaded, settings), work)
        assert routes(distinct, loaded.model) == before
    return found


def test_of_sequences_that_decode_together(distinct, cases):
    found = counted(distinct, cases / "qwen35moe.gguf", 3)
    assert 1 <= found["least"] <= found["distinct"] <= found["experts"]
    assert 0.3 < found["share_of_expected"] < 1.7


@pytest.mark.parametrize("family", ["qwen35moe", "gemma4moe", "laguna"])
def test_every_router_of_a_model_is_looked_at(distinct, cases, wrapped_ops, family):
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(device="cpu", dtype="f32", context=64, slots=4)
    bound = []
    with (
        wrapped_ops(route=lambda arguments, run: bound.append(run) or run),
        Runtime.open(cases / f"{family}.gguf", settings, registry) as runtime,
    ):
        assert routes(distinct, runtime.loaded.model) == bound != []


def test_the_results_of_a_warmup_are_no_choice(distinct):
    moe = object.__new__(MoE)
    moe.store = SimpleNamespace(bay_of_expert=torch.arange(8))
    moe.route = lambda x: (torch.tensor([[0, 1]]), torch.ones(1, 2))
    ops = SimpleNamespace(launches_suppressed=True)
    with distinct["_choices"]([moe], ops, 1) as found:
        for ops.launches_suppressed in (True, False):
            moe.route(torch.zeros(1, 4))
    assert [choices.distinct for choices in found] == [2]


def test_of_a_model_without_experts_there_is_nothing_to_say(distinct, cases):
    assert counted(distinct, cases / "qwen35.gguf", 1) is None


def test_what_rows_that_choose_at_random_would_read(distinct):
    choices = distinct["Choices"](256, torch.tensor([[0, 1], [1, 2], [0, 1]]))
    assert choices.distinct == 3
    assert choices.expected == pytest.approx(256 * (1 - (254 / 256) ** 3))

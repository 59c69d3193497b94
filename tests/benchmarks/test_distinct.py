"""Counting the experts that a step reads, on a CPU."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import pytest
import torch

from kinfolk.cli.bench import Workload
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


@pytest.fixture(scope="module")
def distinct(repo):
    return runpy.run_path(str(repo / "benchmarks/distinct.py"))


def counted(distinct, path, sequences):
    settings = load_settings(device="cpu", dtype="f32", context=64, slots=4)
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    with Runtime.open(path, settings, registry) as runtime:
        ops = runtime.loaded.ops
        work = Workload(8, 8, sequences, 0.0)
        found = distinct["distinct_experts"](
            runtime, scheduler_limits(runtime.loaded, settings), work
        )
        assert "route" not in vars(ops)
    return found


def test_of_sequences_that_decode_together(distinct, cases):
    found = counted(distinct, cases / "qwen35moe.gguf", 3)
    assert 1 <= found["least"] <= found["distinct"] <= found["experts"]
    assert 0.3 < found["share_of_expected"] < 1.7


def test_the_results_of_a_warmup_are_no_choice(distinct):
    given = (torch.tensor([[0, 1]]), torch.ones(1, 2))
    ops = SimpleNamespace(launches_suppressed=True, route=lambda x, weight: given)
    with distinct["_choices"](ops, 1) as found:
        for ops.launches_suppressed in (True, False):
            ops.route(torch.zeros(1, 4), torch.zeros(8, 4))
    assert [choices.distinct for choices in found] == [2]


def test_of_a_model_without_experts_there_is_nothing_to_say(distinct, cases):
    assert counted(distinct, cases / "qwen35.gguf", 1) is None


def test_what_rows_that_choose_at_random_would_read(distinct):
    choices = distinct["Choices"](256, torch.tensor([[0, 1], [1, 2], [0, 1]]))
    assert choices.distinct == 3
    assert choices.expected == pytest.approx(256 * (1 - (254 / 256) ** 3))

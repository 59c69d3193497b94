"""What is measured of loading experts, on a tiny file."""

from __future__ import annotations

import runpy
import sys

import pytest

from kinfolk.experts.arena import HostArena


@pytest.fixture
def bench(repo, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(repo / "benchmarks"), *sys.path])
    # The benchmark times arenas from then on.
    monkeypatch.setattr(HostArena, "__init__", HostArena.__init__)
    return runpy.run_path(str(repo / "benchmarks/expert_load.py"))


def test_seconds_and_bytes_of_a_load_are_those_of_its_plan(bench, cases):
    usual, half = (
        bench["loaded"](cases / "laguna.gguf", budget, "dense", "cpu") for budget in ("all", "50%")
    )
    assert usual["host_bytes"] == usual["lock_seconds"] == 0
    assert half["host_bytes"] > 0
    assert half["peak_bytes"] <= half["planned_bytes"]
    for one, times in ((usual, 1.0), (half, 1.6)):
        one["times"] = times
    first, second = bench["table"]([usual, half]).splitlines()[-2:]
    assert first.endswith("|  |")
    assert second.endswith("| slow |")
    half["peak_bytes"] = half["planned_bytes"] + 1
    assert "slow, over the plan" in bench["table"]([half])

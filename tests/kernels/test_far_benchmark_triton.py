"""The measuring of experts in host memory, in Triton's interpreter: that every part of it runs."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

from kinfolk_kernels.experts import pair_launches
from kinfolk_kernels.fetch import triton_backend as fetching
from kinfolk_kernels.land import triton_backend as landing

pytestmark = pytest.mark.interpreter


@pytest.fixture
def far(repo, tmp_path, monkeypatch, capsys):
    """``far(*options)``: the outcomes of a tiny run, and its lines."""
    # The interpreter runs one program after the other.
    for kernel in (fetching, landing):
        monkeypatch.setattr(kernel, "FETCH_PROGRAMS", 2)
    monkeypatch.setattr(pair_launches, "QUADS", 16)
    monkeypatch.syspath_prepend(str(repo / "benchmarks/kernels"))
    file = tmp_path / "far.json"

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["far.py", "--tiny", "--json", str(file), *options])
        runpy.run_path(str(repo / "benchmarks/kernels/far.py"), run_name="__main__")
        return json.loads(file.read_text()), capsys.readouterr().out.splitlines()

    return run


def test_every_question_gets_an_answer_beside_a_prediction(far):
    found, lines = far()
    assert {"pinned by torch: fetch of nothing", "pinned by torch: fetch of 1"} <= found.keys()
    assert sum("in place" in what for what in found) == 4
    assert all("predicted" in result for result in found.values())
    assert len(lines) == len(found) + 1
    assert lines[-1].startswith("below 0.7 of a copy")


def test_fetch_alone_is_timed_for_each_way_to_divide_it(far):
    found, lines = far("--fetch", "2x4096", "3x1024x8")
    ways = {what.split(":")[0] for what in found if "fetch" in what}
    assert ways == {"2x4096x4", "3x1024x8"}
    assert {"3x1024x8: fetch of nothing", "3x1024x8: fetch of 2"} <= found.keys()
    assert len(lines) == len(found)

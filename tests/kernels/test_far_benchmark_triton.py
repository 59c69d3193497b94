"""The measuring of experts in host memory, in Triton's interpreter: that every part of it runs."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

from kinfolk_kernels.experts import pair_launches
from kinfolk_kernels.fetch import triton_backend as fetching

pytestmark = pytest.mark.interpreter


def test_every_question_gets_an_answer_beside_a_prediction(repo, tmp_path, monkeypatch, capsys):
    # The interpreter runs one program after the other.
    monkeypatch.setattr(fetching, "FETCH_PROGRAMS", 2)
    monkeypatch.setattr(pair_launches, "QUADS", 16)
    monkeypatch.syspath_prepend(str(repo / "benchmarks/kernels"))
    file = tmp_path / "far.json"
    monkeypatch.setattr(sys, "argv", ["far.py", "--tiny", "--json", str(file)])
    runpy.run_path(str(repo / "benchmarks/kernels/far.py"), run_name="__main__")
    found = json.loads(file.read_text())
    assert {"fetch of nothing", "pinned by torch: fetch of 1"} <= found.keys()
    assert sum("in place" in what for what in found) == 4
    assert all("predicted" in result for result in found.values())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found) + 1
    assert lines[-1].startswith("below 0.7 of a copy")

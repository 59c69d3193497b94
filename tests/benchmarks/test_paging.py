"""The benchmark of paging, with small numbers: every row is taken, or says why not."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest


@pytest.fixture
def paging(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    spec = importlib.util.spec_from_file_location("paging", repo / "benchmarks/paging.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "paging", module)
    spec.loader.exec_module(module)
    return module


def test_every_row_is_taken(paging, cases, tmp_path):
    """The forward of prompts is left out, what moves is not: exchanges and evictions are those of
    the rules."""
    result = tmp_path / "result.json"
    paging.main(
        [
            *("--model", str(cases / "qwen35.gguf"), "--device", "cpu", "--json", str(result)),
            *("--context", "1500", "--budget", "832", "--burst", "3", "--short", "600"),
            *("--tokens", "70", "--chunk", "100", "--depths", "0,512", "--sequences", "1,2"),
            *("--codecs", "q8_0", "--host", "0.1", "--read"),
        ]
    )
    rows = json.loads(result.read_text())["rows"]
    taken = {}
    for row in rows:
        taken.setdefault(row["row"], []).append(row)
    one, two = taken["step"]
    assert one["attended"] == (832 // 64 - 3 - 1) * 64
    assert one["steps"] == one["waits"] >= 69
    assert one["kvflash_evictions"] in (1, 2)
    assert one["ratio"] > 0
    assert two["kvflash_evictions"] == 2 * one["kvflash_evictions"]
    assert two["steps"] == one["steps"], "both decode in the same steps"
    drawn, attention = taken["choosing"]
    assert (drawn["scorer"], attention["scorer"]) == ("drawn", "qk")
    assert drawn["exchanges_a_round"] == 3
    for choosing in (drawn, attention):
        assert choosing["rounds"] == 1
        assert choosing["captures"] == choosing["allocations"] == 0
        assert 0 < choosing["host_share_of_decode"] < 1
    assert taken["leaving"][0]["host_us_an_eviction"] > 0
    assert "skipped" in taken["memory"][0], "there is no such counter on a CPU"
    both = [(row["which"], row["depth"]) for row in taken["reading"]]
    assert both == [(which, depth) for which in ("with the budget", "all on the device")
                    for depth in (0, 512)]  # fmt: skip
    assert taken["whole"][0]["tokens"] == 1499
    assert taken["full"][0]["ms"] > 0

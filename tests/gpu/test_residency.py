"""A trace played in captured steps on the device: its counters are those of the simulator."""

from __future__ import annotations

import importlib
import json

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", ["qwen35moe", "laguna", "gemma4moe"])
def test_captured_steps_count_what_the_simulator_counts(repo, cases, monkeypatch, tmp_path, case):
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    file = tmp_path / "rows.json"
    importlib.import_module("residency").main(
        [
            *("bench", "-m", str(cases / f"{case}.gguf"), "--device", "cuda", "--repeats", "2"),
            *("--expert-budget", "30%", "70%", "--sequences", "1", "4", "--prompt", "40"),
            *("--generate", "20", "--link", "50", "--json", str(file)),
        ]
    )
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 + 2 * 2 * 2
    for row in rows:
        assert row["uncapturable_ops"] == {}
        if row["opening"].endswith("%, swap on"):
            assert row["device"] == row["simulated"]
            assert row["device"][0] > 0
            assert row["device"][1] > 0

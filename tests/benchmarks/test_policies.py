"""The comparison of policies in the engine, with short texts."""

from __future__ import annotations

import importlib
import json
import sys

import pytest


@pytest.fixture
def policies(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    recall = importlib.import_module("recall")
    monkeypatch.setattr(recall, "CHUNKS", 12)
    monkeypatch.setattr(recall, "KINDS", {"ids": recall.KINDS["ids"]})
    module = importlib.import_module("policies")
    module.ANSWER = 3
    yield module
    for name in ("policies", "recall"):
        del sys.modules[name]


def test_every_policy_has_a_row(policies, tmp_path):
    file = tmp_path / "rows.json"
    policies.main(["--each", "1", "--depths", ".5", "--json", str(file)])
    rows = {row["policy"]: row for row in json.loads(file.read_text())}
    assert tuple(rows) == policies.POLICIES
    assert all(row["total"] == {"ids": policies.ANSWER} for row in rows.values())
    assert rows["lru"]["selections"] == rows["lru"]["device_bytes"] == 0
    assert 0 < rows["qk"]["device_bytes"] < rows["drafter"]["device_bytes"]
    for policy in ("qk", "drafter", "oracle"):
        assert rows[policy]["selections"] > 0
        assert rows[policy]["recalled"] > 0

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


@pytest.mark.parametrize(
    "asked", [("qk",), pytest.param(("lru", "qk", "drafter", "oracle"), marks=pytest.mark.long)]
)
def test_every_policy_has_a_row(policies, tmp_path, asked):
    file = tmp_path / "rows.json"
    which = ("--policies", ",".join(asked))
    policies.main(["--each", "1", "--depths", ".5", *which, "--json", str(file)])
    rows = {row["policy"]: row for row in json.loads(file.read_text())}
    assert tuple(rows) == asked
    for policy, row in rows.items():
        assert row["total"] == {"ids": policies.ANSWER}
        scored = policy != "lru"
        assert [row[name] > 0 for name in ("selections", "recalled", "device_bytes")] == [
            scored
        ] * 3

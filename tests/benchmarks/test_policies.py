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
    monkeypatch.setattr(recall, "ANSWER", 3)
    monkeypatch.setattr(recall, "KINDS", {"ids": recall.KINDS["ids"]})
    yield importlib.import_module("policies")
    for name in ("policies", "forced", "recall"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (("qk",), ()),
        pytest.param(
            ("lru", "qk", "drafter", "oracle"), ("--exact", "whole"), marks=pytest.mark.long
        ),
    ],
)
def test_every_policy_has_its_rows(policies, tmp_path, asked, more):
    file = tmp_path / "rows.json"
    which = ("--policies", ",".join(asked), *more)
    policies.main(["--each", "1", "--depths", ".5", *which, "--json", str(file)])
    resident, *rows = json.loads(file.read_text())
    assert (resident["policy"], resident["recalled"]) == ("resident", 0)
    prompts = [True, False] if more else [False]
    wanted = [(policy, exact) for policy in asked for exact in prompts]
    assert [(row["policy"], row["exact"]) for row in rows] == wanted
    for row in rows:
        assert row["total"] == {"ids": 3}
        scored = row["policy"] != "lru"
        assert [row[name] > 0 for name in ("selections", "recalled", "device_bytes")] == [
            scored
        ] * 3

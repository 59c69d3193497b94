"""The comparison of policies in the engine, with short texts."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


@pytest.fixture
def policies(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    recall = importlib.import_module("recall")
    monkeypatch.setattr(recall, "CHUNKS", 12)
    monkeypatch.setattr(recall, "KINDS", {"function": recall.KINDS["function"]})
    yield importlib.import_module("policies")
    for name in ("policies", "forced", "recall"):
        del sys.modules[name]


def right_tokens(registry, text):
    """Without an engine: at how many places the right token is the most probable one."""
    path, tokens = bundled_model(registry), [*text.tokens, *text.answer]
    settings = load_settings(device="cpu", dtype="f32", slots=1, context=len(tokens))
    loaded = load_model(path, settings, registry)
    chosen = [int(token) for rows in logits(loaded, tokens) for token in rows.argmax(1)]
    loaded.file.close()
    behind = chosen[len(text.tokens) - 1 : -1]
    return sum(a == b for a, b in zip(behind, text.answer, strict=True))


@pytest.mark.parametrize(
    "asked", [("qk",), pytest.param(("lru", "qk", "drafter", "oracle"), marks=pytest.mark.long)]
)
def test_every_policy_has_its_rows(policies, tmp_path, asked):
    """With everything on the device, what is right is what a plain forward says."""
    file = tmp_path / "rows.json"
    which = ("--policies", ",".join(asked))
    policies.main(["--each", "1", "--depths", ".5", "--exact", *which, "--json", str(file)])
    resident, *rows = json.loads(file.read_text())
    assert (resident["policy"], resident["recalled"]) == ("resident", 0)
    assert [row["policy"] for row in rows] == [policy for policy in asked for _ in range(2)]
    assert [row["exact"] for row in rows] == [True, False] * len(asked)
    for row in rows:
        assert row["total"] == {"function": 14}
        scored = row["policy"] != "lru"
        assert [row[name] > 0 for name in ("selections", "recalled", "device_bytes")] == [
            scored
        ] * 3
    registry = Registry.discover(load_settings())
    (text,) = policies.cases_of(bundled_model(registry), registry, [0.5], 1)
    assert resident["right"] == {"function": right_tokens(registry, text)}

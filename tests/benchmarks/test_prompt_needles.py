"""The benchmark of compressed prompts runs, and finds more than chance does."""

from __future__ import annotations

import importlib.util
import sys

import pytest


@pytest.fixture(scope="module")
def benchmark_of_needles(repo):
    path = repo / "benchmarks/prompt_needles.py"
    spec = importlib.util.spec_from_file_location("prompt_needles", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["prompt_needles"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["prompt_needles"]


def test_the_bundled_model_finds_needles(benchmark_of_needles, tmp_path):
    file = tmp_path / "found.json"
    options = ["--functions", "30", "--each", "2", "--ratios", ".2", "--json", str(file)]
    random, scored, both = benchmark_of_needles.main(options)
    assert (random.by, scored.by) == ("random", "scores")
    assert random.cases == scored.cases == 8
    assert random.found < scored.found <= both.found
    assert scored.kept < 0.3
    assert file.read_text().count('"found"') == 3

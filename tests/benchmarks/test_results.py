"""Results that were measured with other kernels than the present ones are found."""

from __future__ import annotations

import json
import runpy
import warnings

import pytest


@pytest.fixture(scope="module")
def results(repo):
    return runpy.run_path(str(repo / "benchmarks/results.py"))


@pytest.fixture
def tree(tmp_path, results):
    """A repository with one kernel, and ``put(taken, kernels)`` for a result."""
    (tmp_path / "kernels/op").mkdir(parents=True)
    (tmp_path / "kernels/op/triton_backend.py").write_text("first")
    folder = tmp_path / "benchmarks/results"
    folder.mkdir(parents=True)

    def put(taken, kernels=None, **left_out):
        result = dict.fromkeys(results["NEEDED"], "")
        result |= {"taken": taken, "kernels": kernels or results["kernels_hash"](tmp_path)}
        result = {key: value for key, value in result.items() if key not in left_out}
        (folder / f"{taken}.json").write_text(json.dumps(result))

    return tmp_path, put


def test_the_newest_result_counts(results, tree):
    root, put = tree
    assert "nothing was measured" in results["staleness"](root)
    put("2001-01-02")
    assert results["staleness"](root) == ""
    put("2001-01-01", kernels="another")
    assert results["staleness"](root) == ""
    put("2001-01-03", kernels="another")
    assert "changed since the newest result of 2001-01-03" in results["staleness"](root)


@pytest.mark.parametrize("change", ["text", "name", "more"])
def test_any_change_of_a_kernel_makes_results_stale(results, tree, change):
    root, put = tree
    put("2001-01-02")
    kernel = root / "kernels/op/triton_backend.py"
    match change:
        case "text":
            kernel.write_text("second")
        case "name":
            kernel.rename(kernel.with_name("other.py"))
        case "more":
            kernel.with_name("other.py").write_text("")
    assert "has changed" in results["staleness"](root)


def test_a_file_that_is_no_result_is_named(results, tree):
    root, put = tree
    put("2001-01-02", commit=True)
    with pytest.raises(ValueError, match=r"2001-01-02.json is no result: it lacks commit"):
        results["staleness"](root)


def test_results_of_this_repository_can_be_read(results, repo):
    """Stale ones are no fault of the code, and are reported as a warning."""
    reason = results["staleness"](repo)
    if reason:
        warnings.warn(reason, stacklevel=1)
    result = results["newest"](repo / "benchmarks/results")
    assert result is None or {row["case"] for row in result["rows"]}

"""Two builds in one process: each imports its own modules, and pairs of timings decide."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def compare(repo, monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    import compare

    return compare


def test_each_build_imports_its_own_modules(compare, tmp_path, monkeypatch):
    builds = []
    for name in ("old", "new"):
        package = tmp_path / name / "core" / "kinfolk_toy_build"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"BUILD = {name!r}\n")
        (package / "late.py").write_text(f"BUILD = {name!r}\n")
        builds.append(compare.Build(name, tmp_path / name))
    monkeypatch.setattr(compare, "is_own", lambda module: module.startswith("kinfolk_toy_build"))
    path = list(sys.path)
    for module in ("kinfolk_toy_build", "kinfolk_toy_build.late"):
        for build in (*builds, *builds):
            with build.active():
                assert build.name == build.module(module).BUILD
            assert module not in sys.modules
    assert sys.path == path


def test_the_ratio_is_of_pairs_and_its_interval_of_their_spread(compare):
    same = compare.summary([100, 90, 110], [102, 91.8, 112.2])
    assert (same["ratio"], same["low"], same["high"]) == (1.02, 1.02, 1.02)
    spread = compare.summary([100, 100], [90, 110])
    assert spread["ratio"] == pytest.approx(0.995, abs=1e-4)
    assert spread["low"] < 0.9 < 1.1 < spread["high"]

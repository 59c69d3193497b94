"""Values of a constant, in turn."""

from __future__ import annotations

import argparse

import pytest

from kinfolk_kernels.route import triton_backend


@pytest.fixture
def script(repo, monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    monkeypatch.syspath_prepend(str(repo / "benchmarks/kernels"))
    import variants

    return variants


ROUTE = "kinfolk_kernels.route.triton_backend"


def test_its_own_value_comes_first_and_is_there_again_behind(script):
    constant = script.Constant.parsed(f"{ROUTE}:MAX_FEW_ROWS=16,(64, 2)")
    own, seen = triton_backend.MAX_FEW_ROWS, []

    def figures(repeats):
        seen.append(triton_backend.MAX_FEW_ROWS)
        return dict.fromkeys(script.SHOWN, repeats)

    rows = list(script.in_turn(constant, 2, 3, figures))
    assert seen == [own, 16, (64, 2)] * 2
    assert [row["MAX_FEW_ROWS"] for row in rows] == seen
    assert rows[0]["step_milliseconds"] == 3
    assert own == triton_backend.MAX_FEW_ROWS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{ROUTE}:MAX_FEW_ROWS", "is not MODULE:NAME=VALUE"),
        ("MAX_FEW_ROWS=3", "is not MODULE:NAME=VALUE"),
        ("kinfolk_kernels.nothing:X=3", "there is no module 'kinfolk_kernels.nothing'"),
        (f"{ROUTE}:NOTHING=3", "has no 'NOTHING'"),
        ("kinfolk_kernels.route.kernel:BELOW_ALL_KEYS=3", "is compiled into kernels"),
        (f"{ROUTE}:MAX_FEW_ROWS=three", "'three' are no Python literals"),
    ],
)
def test_what_cannot_be_changed_is_refused(script, text, complaint):
    with pytest.raises(argparse.ArgumentTypeError, match=complaint):
        script.Constant.parsed(text)

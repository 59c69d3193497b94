"""The ratio of a prompt that is kept, by its length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.compress.keep_ratio import KeepCurve

CURVE = KeepCurve.parse(("10000:0.5", "40000:0.2", "100000:0.1"))


@pytest.mark.parametrize(
    ("tokens", "ratio"),
    [
        (0, 0.5),
        (10000, 0.5),
        (25000, 0.35),
        (40000, 0.2),
        (70000, 0.15),
        (100000, 0.1),
        (9**9, 0.1),
    ],
)
def test_between_points_the_ratio_is_on_a_line(tokens, ratio):
    assert CURVE.ratio(tokens) == pytest.approx(ratio)


@given(st.integers(0, 10**6))
def test_one_ratio_holds_for_all_lengths(tokens):
    assert KeepCurve.flat(0.05).ratio(tokens) == 0.05


@given(st.integers(0, 200000))
def test_no_ratio_is_outside_of_those_named(tokens):
    assert 0.1 <= CURVE.ratio(tokens) <= 0.5


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ((), "at least one point"),
        (("1000",), "'1000' is not of the form TOKENS:RATIO"),
        (("a:0.5",), "'a:0.5' is not of the form"),
        (("10:x",), "'10:x' is not of the form"),
        (("20:0.5", "10:0.4"), "must increase"),
        (("10:0.5", "10:0.4"), "must increase"),
        (("-1:0.5",), "must increase"),
        (("10:0",), "above 0 and at most 1, got 0.0"),
        (("10:1.5",), "got 1.5"),
        (("10:nan",), "got nan"),
    ],
)
def test_what_is_no_curve_is_refused(parts, what):
    with pytest.raises(ValueError, match=what):
        KeepCurve.parse(parts)

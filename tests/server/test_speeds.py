"""Speeds of the last minutes and of each request, from totals that are looked at now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.sched.request import Status
from kinfolk.sched.view import SequenceView
from kinfolk.server.speeds import BIN_SECONDS, BINS, RequestSpeeds, SpeedHistory


def speeds_of(looks, now):
    history = SpeedHistory()
    for look in looks:
        history.add(*look)
    return history.speeds(now)


def test_a_steady_rate_is_the_same_in_every_bin():
    looks = [(t / 4, 10 * t, 25 * t) for t in range(4 * BIN_SECONDS * 3 + 1)]
    found = speeds_of(looks, 3 * BIN_SECONDS)
    assert found["generated"][-3:] == [40.0] * 3
    assert found["prompt"][-3:] == [100.0] * 3
    assert found["generated"][:-3] == [None] * (BINS - 3)


def test_a_time_in_which_nobody_looked_is_no_zero():
    looks = [(0.0, 0, 0), (5.0, 50, 0), (65.0, 10**6, 0), (70.0, 10**6 + 5, 0)]
    found = speeds_of(looks, 70.0)["generated"]
    assert found[-14] == 10.0
    assert found[-13:-1] == [None] * 12
    assert found[-1] == 1.0


def test_a_bin_that_is_not_over_is_not_told():
    looks = [(0.0, 0, 0), (4.0, 40, 0)]
    assert speeds_of(looks, 4.9)["generated"] == [None] * BINS
    assert speeds_of(looks, 5.0)["generated"][-1] == 10.0


@given(
    st.lists(
        st.tuples(st.floats(0.01, 10.0), st.integers(0, 10**6), st.integers(0, 10**6)),
        min_size=1,
        max_size=40,
    )
)
def test_no_token_is_lost_or_counted_twice(steps):
    """Bins times their seconds sum up to the totals, while the bins reach back to the start."""
    now, generated, prompt = 0.0, 0, 0
    history = SpeedHistory()
    history.add(now, generated, prompt)
    for seconds, more, also in steps:
        if now + seconds > BINS * BIN_SECONDS:
            break
        now, generated, prompt = now + seconds, generated + more, prompt + also
        history.add(now, generated, prompt)
    end = (int(now // BIN_SECONDS) + 1) * BIN_SECONDS
    history.add(end - 1e-9, generated, prompt)
    if end > BINS * BIN_SECONDS:
        return
    found = history.speeds(end)
    for name, total in (("generated", generated), ("prompt", prompt)):
        told = sum(BIN_SECONDS * value for value in found[name] if value is not None)
        assert told == pytest.approx(total, rel=1e-6, abs=BINS * BIN_SECONDS * 0.05 + 1e-3)


def request(name="a", position=0, emitted=0):
    return SequenceView(
        *(name, Status.DECODE, 1, 1, 100, position, None, emitted, 10, 10, None, 0, 0, 0.0)
    )


def test_the_speed_of_a_request_is_that_of_its_prompt_and_then_of_its_answer():
    speeds = RequestSpeeds()
    speeds.add(0.0, [request(position=0)])
    assert speeds.of(request()) is None, "seen once"
    speeds.add(1.0, [request(position=64)])
    assert speeds.of(request()) == 64.0
    speeds.add(4.0, [request(position=100, emitted=1)])
    speeds.add(6.0, [request(position=110, emitted=11)])
    assert speeds.of(request()) == 5.0


def test_a_request_that_stands_still_has_the_speed_zero():
    speeds = RequestSpeeds()
    speeds.add(0.0, [request(position=9, emitted=3)])
    speeds.add(1.0, [request(position=9, emitted=3)])
    assert speeds.of(request()) == 0.0


def test_requests_that_have_ended_are_forgotten():
    speeds = RequestSpeeds()
    speeds.add(0.0, [request("a"), request("b")])
    speeds.add(1.0, [request("b", emitted=4)])
    assert speeds.of(request("a")) is None
    assert speeds.of(request("b")) == 4.0

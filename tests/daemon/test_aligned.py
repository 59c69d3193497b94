"""The selector of aligned requests: its table, and what holds of every choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.daemon.aligned import AlignedBatch, BatchCandidate, select


def candidates(positions, pending, remaining):
    zipped = zip(positions, pending, remaining, strict=True)
    return [BatchCandidate(slot, *each) for slot, each in enumerate(zipped)]


@pytest.mark.parametrize(
    ("positions", "pending", "remaining", "tail", "expected"),
    [
        (
            (17, 17, 10),
            (1, 2, 3),
            (4, 4, 4),
            False,
            {"position": 17, "buckets": 2, "singletons": 1},
        ),
        ((10, 17), (1, 2), (4, 4), False, {"blocked": True}),
        (
            (20, 20, 20),
            (1, 2, 3),
            (2, 1, 1),
            True,
            {"position": 20, "eligible": 2, "ineligible": 1},
        ),
        (
            (0, 18, 18),
            (-1, 7, 8),
            (1, 1, 1),
            False,
            {"position": 18, "eligible": 2, "ineligible": 1},
        ),
        ((10, 17, 17), (1, 2, 3), (4, 4, 4), False, {"blocked": True}),
        ((17, 17, 17), (1, 2, 3), (4, 4, 4), False, {"position": 17, "cursor": 2}),
    ],
)
def test_the_table(positions, pending, remaining, tail, expected):
    batch = select(candidates(positions, pending, remaining), 2, len(positions), tail=tail)
    assert len(batch.slots) == (0 if batch.blocked else 2)
    for name, value in {"blocked": False, **expected}.items():
        assert getattr(batch, name) == value


@pytest.mark.parametrize(("count", "most"), [(3, 1), (0, 4)])
def test_fewer_than_two_are_no_batch(count, most):
    assert select(candidates((5,) * count, (1,) * count, (2,) * count), most, 4) == AlignedBatch()


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(1, 2)), max_size=8),
    most=st.integers(1, 9),
    tail=st.booleans(),
)
def test_the_first_eligible_request_is_never_overtaken(rows, most, tail):
    found = [BatchCandidate(slot, *row) for slot, row in enumerate(rows)]
    batch = select(found, most, 8, tail=tail)
    eligible = [
        each
        for each in found
        if each.position > 0 and each.pending >= 0 and (not tail or each.remaining == 1)
    ]
    if batch.slots:
        assert 2 <= len(batch.slots) <= most
        assert batch.slots[0] == eligible[0].slot
        assert {found[slot].position for slot in batch.slots} == {eligible[0].position}
        assert batch.cursor == (batch.slots[-1] + 1) % 8
    elif most > 1 and eligible:
        assert batch.blocked

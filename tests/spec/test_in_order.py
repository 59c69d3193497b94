"""Drafters of the host in order: the first that proposes something is followed."""

from __future__ import annotations

import pytest

from kinfolk.spec.in_order import DraftersInOrder


class Fixed:
    """Proposes the same tokens always, and remembers what it was asked."""

    def __init__(self, *tokens):
        self.tokens, self.released = list(tokens), []

    def propose(self, known, limit):
        return self.tokens[:limit]

    def release(self, known):
        self.released.append(known)


class Failing:
    def propose(self, known, limit):
        raise RuntimeError("propose failed")

    def release(self, known):
        raise RuntimeError("release failed")


def test_the_first_that_proposes_something_is_followed():
    drafters = DraftersInOrder((Fixed(), Fixed(4, 5, 6), Fixed(7)))
    assert drafters.propose([1], 2) == [4, 5]
    assert DraftersInOrder((Fixed(), Fixed())).propose([1], 2) == []


def test_a_drafter_that_fails_hides_none_behind_it():
    assert DraftersInOrder((Failing(), Fixed(7))).propose([1], 2) == [7]


def test_the_error_is_raised_if_no_other_proposes():
    with pytest.raises(RuntimeError, match="propose failed"):
        DraftersInOrder((Failing(), Fixed())).propose([1], 2)


def test_all_are_released_and_then_the_error_is_raised():
    last = Fixed()
    with pytest.raises(RuntimeError, match="release failed"):
        DraftersInOrder((Failing(), last)).release([1, 2])
    assert last.released == [[1, 2]]

"""Which chunks stay and which come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import SettingsError
from kinfolk.residency import selection
from kinfolk.residency.kept import KEPT_CHUNK_BYTES, NOTHING_KEPT, KeptResidency
from kinfolk.residency.residency import Phase, Residency
from kinfolk.residency.rules import ResidencyRules, least_chunks
from kinfolk.residency.selection import FAVOUR

CHUNKS = range(30)


def numbered(chunks):
    return np.array(sorted(chunks), np.int64)


def select(resident, away, *more):
    return selection.select(numbered(resident), numbered(away), *more)


def least_worth(chunks, *more):
    return selection.least_worth(numbered(chunks), *more)


@given(
    st.sets(st.sampled_from(CHUNKS)),
    st.lists(st.floats(-5, 5), min_size=30, max_size=30),
    st.integers(0, 5),
    st.integers(1, 12),
)
def test_a_selection_is_the_best_of_at_most_so_many_exchanges(resident, scores, room, burst):
    away = set(CHUNKS) - resident
    chosen = select(resident, away, scores, room, burst)
    leaving, coming = set(chosen.leaving), set(chosen.coming)
    assert leaving <= resident
    assert coming <= away
    assert len(coming) <= burst
    assert len(coming) - len(leaving) == min(room, burst, len(away))
    # Whoever comes is worth more than whoever stays away, and those who leave less than those who
    # stay.
    for chunk in coming:
        assert all((scores[chunk], chunk) > (scores[other], other) for other in away - coming)
    for chunk in leaving:
        assert all((scores[chunk], chunk) < (scores[other], other) for other in resident - leaving)
    gained = [scores[chunk] for chunk in chosen.coming[len(coming) - len(leaving) :]]
    for new, old in zip(gained, (scores[chunk] for chunk in chosen.leaving), strict=True):
        assert (new * FAVOUR if new > 0 else new / FAVOUR) > old


@given(
    st.sets(st.sampled_from(CHUNKS)),
    st.one_of(st.none(), st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=30)),
    st.integers(0, 32),
)
def test_the_least_worth_are_the_first_of_all_in_order(chunks, scores, count):
    """Written out: sorted by whether someone judged them, by score, and by number."""

    def worth(chunk):
        judged = scores is not None and chunk < len(scores)
        return not judged, scores[chunk] if judged else 0.0, chunk

    assert least_worth(chunks, scores, count) == sorted(chunks, key=worth)[:count]


def test_what_is_there_is_favoured():
    assert select({1}, {2}, [0.0, 0.91, 1.0], 0, 4).coming == ()
    assert select({1}, {2}, [0.0, 0.89, 1.0], 0, 4).coming == (2,)
    assert select({1}, {2}, [0.0, -1.0, -0.95], 0, 4).coming == ()


def test_ties_are_broken_by_the_number_of_a_chunk():
    assert least_worth({4, 2, 9}, [1.0] * 10, 2) == [2, 4]
    assert select(set(), {4, 2, 9}, [1.0] * 10, 2, 4).coming == (9, 4)


def test_without_scores_the_last_chunks_stay():
    assert least_worth({4, 2, 9}, None, 2) == [2, 4]
    assert select({5, 6}, {1, 2}, None, 0, 4).coming == ()


def test_a_chunk_that_was_sealed_after_the_scores_is_worth_more_than_any_that_has_one():
    assert least_worth({1, 2, 3}, [0.0, 9.0, 8.0], 3) == [2, 1, 3]


@pytest.mark.parametrize("chunks", [7, 8])
def test_the_smallest_budget_has_room_for_all_that_it_must_hold(chunks):
    least = least_chunks(1, 3, 2)
    assert least == 8
    if chunks < least:
        with pytest.raises(SettingsError, match="make 8 chunks of 64 tokens = 512"):
            ResidencyRules(chunks, sink=1, tail=3, burst=2)
    else:
        rules = ResidencyRules(chunks, sink=1, tail=3, burst=2)
        assert rules.slice_rows(2048) == 128
        assert rules.decoding == 5


def residency(tau=10):
    return Residency(ResidencyRules(12, burst=2, tau=tau, scorers=("a",)), 700, 11, (2, 3))


def test_a_selection_is_due_after_tau_committed_tokens_in_whatever_portions():
    """Counted, never a modulus: a step may commit several tokens."""
    one = residency()
    one.restored = False
    for committed in (3, 3, 3):
        one.since += committed
        assert one.due() is None
    assert one.due(committed=1) == "interval"
    one.since += 3
    assert one.due() == "interval"
    one.asked()
    assert one.since == 0
    assert one.due() is None, "one at a time"


def test_a_selection_is_due_after_a_start_from_a_prefix_and_at_the_end_of_a_prompt():
    one = residency(tau=1000)
    assert one.due() == "prefix"
    assert one.due(prompt_ends=True) == "prompt"
    one.asked()
    one.scored(None, range(1, 7), keep=True)
    assert one.due() is None
    assert one.due(prompt_ends=True) == "prompt"


def test_nothing_is_due_while_nothing_is_away_or_nobody_scores():
    rules = ResidencyRules(12, burst=2, tau=1, scorers=("a",))
    assert Residency(rules, 700, 9, ()).due(5, prompt_ends=True) is None
    unscored = Residency(ResidencyRules(12, burst=2, tau=1), 700, 9, (2,))
    assert unscored.due(5, prompt_ends=True) is None


def test_an_exchange_keeps_what_must_stay_and_forgets_what_has_left_meanwhile():
    one = residency()
    one.asked()
    one.scored((9.0, 1.0, 5.0, 4.0, 2.0, 3.0, 8.0, 0.0, 0.0, 0.0), range(1, 7), keep=False)
    assert one.phase is Phase.CHOSEN
    assert one.loads() == (2, 3)
    one.evicted((1,), 700)
    exchange = one.exchange()
    assert exchange.leaving == (4,), "1 has left before, 7 and later ones stay"
    assert exchange.coming == (2, 3)
    assert one.settled


def test_scores_that_nobody_asked_for_change_nothing():
    one = residency()
    one.scored((1.0,) * 10, range(1, 7), keep=False)
    assert one.settled
    assert one.scores is None


@given(st.sets(st.sampled_from(CHUNKS)), st.integers(1, 30))
def test_masks_say_what_is_there_and_when_the_rest_was(away, known):
    away = sorted(chunk for chunk in away if chunk < known)
    one = Residency(ResidencyRules(12, burst=2), 64 * known, known, away)
    gone = sorted(set(range(known)) - set(away))[:2]
    for chunk in gone:
        one.evicted((chunk,), 64 * known + 7)
    resident, last_used = one.masks(64 * known + 9, known)
    for chunk in range(known):
        assert resident[chunk] == (chunk not in (*away, *gone))
        last = 64 * known + (0 if chunk in away else 7 if chunk in gone else 9)
        assert last_used[chunk] == last


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("move"), st.sets(st.integers(0, 40), max_size=5)),
            st.tuples(st.sampled_from(["grow", "reopened"]), st.integers(1, 60)),
        ),
        max_size=30,
    ),
    st.none() | st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=9, max_size=60),
)
def test_chunks_are_there_or_away_as_a_plain_set_says(moves, scores):
    one, there, away = residency(), set(range(11)) - {2, 3}, {2, 3}
    one.scores = None if scores is None else np.array(scores)
    for what, number in moves:
        if what == "move":
            leaving, coming = there & number, away & number
            there, away = there - leaving | coming, away - coming | leaving
            one.evicted(tuple(leaving), 700)
            one.recalled(tuple(coming))
        elif what == "grow":
            there |= set(range(len(there | away), number))
            one.grow(number)
        else:
            away = {chunk for chunk in away if chunk < number}
            there = set(range(number)) - away
            one.reopened(number)
        known = len(there | away)
        movable = range(1, max(1, known - 4))
        for over in (-1, 0, 1, 3):
            first = least_worth(there & set(movable), scores, max(0, over))
            assert one.surplus(known, len(there) - over, movable) == first
        assert set(one.resident.tolist()) == there
        assert set(one.away.tolist()) == away
        assert (one.known, one.missing) == (len(there | away), len(away))
        assert one.kept().resident == there


# -- what stored prefixes remember ----------------------------------------------------------------


@given(
    st.sets(st.sampled_from(CHUNKS)),
    st.one_of(st.none(), st.lists(st.floats(-5, 5), max_size=30)),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.integers(0, 35),
)
def test_a_stored_residency_opens_into_any_number_of_places(resident, scores, ends, places):
    chunks = range(min(ends), max(ends))
    kept = KeptResidency(frozenset(resident), None if scores is None else tuple(scores))
    chosen = kept.best(chunks, places)
    assert len(chosen) == min(places, len(chunks))
    assert chosen <= set(chunks)
    missed = set(chunks) - chosen

    def worth(chunk):
        judged = scores is not None and chunk < len(scores)
        return chunk in resident, not judged, scores[chunk] if judged else 0, chunk

    assert all(worth(one) > worth(other) for one in chosen for other in missed)


@given(
    st.sets(st.sampled_from(CHUNKS)),
    st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    st.integers(0, 35),
)
def test_a_stored_residency_survives_its_bytes(resident, scores, chunks):
    """Of the chunks before a point: others may have been there, and scored, behind it."""
    kept = KeptResidency(frozenset(resident), None if scores is None else tuple(scores))
    packed = kept.packed(chunks)
    assert len(packed) == chunks * KEPT_CHUNK_BYTES
    judged = tuple(scores[:chunks]) if scores and chunks else None
    before = frozenset(chunk for chunk in resident if chunk < chunks)
    assert KeptResidency.unpacked(packed) == KeptResidency(before, judged)


def test_where_nothing_is_remembered_the_last_chunks_are_there():
    assert NOTHING_KEPT.best(range(3, 9), 2) == {7, 8}


def test_a_residency_is_kept_with_its_scores():
    one = residency()
    one.asked()
    one.scored((9.0, 1.0, 5.0), range(1, 3), keep=False)
    assert one.kept() == KeptResidency(frozenset({0, 1, *range(4, 11)}), (9.0, 1.0, 5.0))


def test_chunks_that_could_not_be_scored_leave_first_and_come_last():
    """The core's scorer gives them -1; the others have shares of attention."""
    scores = (0.5, -1.0, 0.0, 0.3, -1.0, 0.1)
    assert least_worth((1, 2, 3), scores, 2) == [1, 2]
    exchange = select((1, 2), (3, 4, 5), scores, 0, 3)
    assert (exchange.leaving, exchange.coming) == ((1, 2), (3, 5))
    assert select((1,), (4,), scores, 0, 3).coming == (), "they do not take each other's place"
    assert select((), (4,), scores, 1, 3).coming == (4,), "but free places"

"""Cuts of texts: between words, inside of their passage, and every character in its order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.compress.spans import (
    LONGEST_REPAIR,
    Span,
    joined_spans,
    merged,
    question,
    repaired,
    runs,
    token_places,
)

TEXTS = st.text(alphabet="ab \n\té語😀.", max_size=120)


@st.composite
def cut_texts(draw):
    text = draw(TEXTS)
    ends = st.integers(0, len(text))
    spans = [Span(*sorted(draw(st.tuples(ends, ends)))) for _ in range(draw(st.integers(0, 5)))]
    return text, spans, Span(*sorted(draw(st.tuples(ends, ends))))


@given(cut_texts())
def test_repaired_spans_hold_what_they_held_and_end_between_words(case):
    text, spans, within = case
    found = repaired(text, spans, within)
    kept = {c for span in found for c in range(span.start, span.end)}
    asked = {c for s in spans for c in range(s.start, s.end) if within.start <= c < within.end}
    assert asked <= kept
    assert all(within.start <= c < within.end for c in kept)
    assert all(a.end < b.start for a, b in itertools.pairwise(found))
    for span in found:
        # No word of these short texts is as long as a repair may be.
        words = [w for w in text.split() if len(w) >= LONGEST_REPAIR]
        if words:
            continue
        left, right = text[span.start - 1 : span.start], text[span.end - 1 : span.end]
        assert span.start == within.start or left.isspace() or text[span.start].isspace()
        assert span.end == within.end or right.isspace()


@given(cut_texts())
def test_joined_text_has_the_words_of_its_spans_in_order(case):
    text, spans, within = case
    found = repaired(text, spans, within)
    joined = joined_spans(text, found)
    words = [word for span in found for word in text[span.start : span.end].split()]
    if all(len(word) < LONGEST_REPAIR for word in text.split()):
        assert joined.split() == words
    assert "".join(joined.split()) == "".join(words)


def test_a_needle_of_several_tokens_stays_whole():
    text = "the secret code is XK-4471-QQ for the north door"
    start = text.index("4471")
    (span,) = repaired(text, [Span(start, start + 2)], Span(0, len(text)))
    assert text[span.start : span.end] == "XK-4471-QQ "


def test_a_text_without_spaces_is_cut_where_it_was():
    text = "語" * 500
    assert repaired(text, [Span(200, 232)], Span(0, 500)) == [Span(200, 232)]
    near = repaired(text, [Span(20, 480)], Span(0, 500))
    assert near == [Span(0, 500)], "an end that is near is not cut off"


def test_no_repair_leaves_its_passage():
    text = "headerworld"
    assert repaired(text, [Span(0, 11)], Span(6, 11)) == [Span(6, 11)]
    assert repaired(text, [Span(0, 5)], Span(6, 11)) == []


def test_of_two_spaces_at_a_joint_one_goes_and_indentation_stays():
    text = "one two three\n    four"
    assert joined_spans(text, [Span(0, 4), Span(7, 13)]) == "one three"
    assert joined_spans(text, [Span(0, 4), Span(13, 22)]) == "one \n    four"


@given(st.lists(st.text(min_size=0, max_size=4), max_size=20))
def test_tokens_of_whole_characters_stand_where_their_text_does(pieces):
    text = "".join(pieces)
    places = token_places(text, [len(piece.encode("utf-8", "replace")) for piece in pieces])
    expected, at = [], 0
    for piece in pieces:
        expected.append(at)
        at += len(piece)
    assert places.tolist() == [*expected, len(text)]


def test_a_token_that_begins_inside_a_character_begins_before_it():
    # Two bytes, then a token of a byte of é and the x.
    assert token_places("aéx", [2, 2]).tolist() == [0, 1, 3]
    assert token_places("😀", [1, 1, 1, 1]).tolist() == [0, 0, 0, 0, 1]


def test_tokens_that_spell_another_text_are_refused():
    with pytest.raises(ValueError, match="spell 3 bytes of a text of 4"):
        token_places("abcd", [1, 2])


@given(st.sets(st.integers(0, 40)))
def test_runs_are_the_same_numbers(numbers):
    found = runs(sorted(numbers))
    assert [n for run in found for n in range(run.start, run.end)] == sorted(numbers)
    assert all(a.end < b.start for a, b in itertools.pairwise(found))
    assert merged(found) == found


def test_the_question_is_the_last_paragraph():
    text = "System\n\nA long story.\n\nWho did it,\nand why?\n\n"
    found = question(text, Span(8, len(text)))
    assert text[found.start : found.end].strip() == "Who did it,\nand why?"
    one = question("only this", Span(0, 9))
    assert one == Span(0, 9)

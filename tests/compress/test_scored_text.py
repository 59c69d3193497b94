"""Texts in pieces, and what is left of messages."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.compress.scored_text import ScoredText, joined_scores, messages_in, pieces
from kinfolk.compress.spans import Span


def text_of(words, **fields):
    """A text of one token a word."""
    text = " ".join(words)
    places, at = [], 0
    for word in words:
        places.append(at)
        at += len(word) + 1
    places = [max(0, place - 1) for place in places] + [len(text)]
    values = {"messages": ((0, Span(0, len(text))),), **fields}
    return ScoredText(text, np.arange(len(words)), np.array(places, np.int64), **values)


@given(length=st.integers(1, 400), most=st.integers(16, 200))
def test_pieces_hold_every_token_once_and_the_question_each(length, most):
    whole = text_of(["w"] * length)
    read = pieces(whole.tokens, most)
    assert all(len(tokens) <= most for tokens, _ in read)
    scored = [token for tokens, count in read for token in tokens[:count]]
    assert scored == list(range(length))
    if len(read) > 1:
        end = min(96, most // 4)
        for tokens, _ in read:
            assert tokens[-end:] == tuple(range(length - end, length))


@given(length=st.integers(1, 300), most=st.integers(16, 64))
def test_scores_of_pieces_are_in_the_order_of_their_tokens(length, most):
    read = pieces(text_of(["w"] * length).tokens, most)
    found = joined_scores(read, iter([np.float32(tokens) for tokens, _ in read]))
    assert found.shape == (length,)
    first = 0
    for _, count in read:
        assert (np.diff(found[first : first + count]) > 0).all()
        first += count


def test_what_is_cut_is_no_more_than_the_message():
    words = [f"w{n}" for n in range(400)]
    text = " ".join(words)
    begin, end = text.index("w50 "), text.index(" w350")
    kept = Span(text.index("w200"), text.index(" w210"))
    whole = text_of(words, messages=((3, Span(begin, end)),), kept=(kept,), ratio=0.3)
    scores = np.zeros(400, np.float32)
    scores[100:132] = 1
    ((number, left),) = whole.cut(scores).items()
    assert number == 3
    assert set(left.split()) <= set(words[50:350])
    assert [w for w in left.split() if w in words[200:210]] == words[200:210]
    assert "w115" in left.split()
    assert len(left.split()) < 130


def test_no_message_is_left_without_a_word():
    words = [f"w{n}" for n in range(300)]
    text = " ".join(words)
    middle = text.index("w150")
    spans = (
        (0, Span(0, middle - 1)),
        (1, Span(middle, middle + 4)),
        (2, Span(middle + 5, len(text))),
    )
    found = text_of(words, messages=spans, ratio=0.05).cut(np.zeros(300, np.float32))
    assert list(found) == [0, 1, 2]
    assert found[1].strip() == "w150"
    assert all(each.strip() for each in found.values())


def test_contents_are_found_in_their_order_and_changed_ones_are_not():
    turns = [
        {"role": "system", "content": " a "},
        {"role": "user", "content": "b a"},
        {"role": "user", "content": "a"},
    ]
    text = "<s>a</s><u>b a</u><u>a</u>"
    assert messages_in(text, turns, (1, 2)) == [(1, Span(11, 14)), (2, Span(21, 22))]
    assert text[21:22] == "a"
    assert messages_in(text.replace("b a", "b  a"), turns, (1, 2)) == []

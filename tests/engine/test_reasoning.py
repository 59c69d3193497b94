"""Reasoning is separated from the answer, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.engine.reasoning import ReasoningSplitter


def split(pieces, *, started):
    splitter = ReasoningSplitter("<think>", "</think>", started=started)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)]
    return segments + splitter.finish()


def texts(segments):
    found = {"reasoning": "", "content": ""}
    for segment in segments:
        found[segment.kind] += segment.text
    return found["reasoning"], found["content"]


CASES = [
    # text, whether the prompt opened the reasoning, reasoning, content
    ("why\n</think>\n\nso", True, "why", "so"),
    ("\nwhy \n\n </think> so ", True, "why", "so "),
    ("<think>\nwhy\n</think>\n\nso", False, "why", "so"),
    ("\n <think>why</think>so", False, "why", "so"),
    ("<think>\n\n</think>\n\nso", False, "", "so"),
    ("</think>so", True, "", "so"),
    ("so it is", False, "", "so it is"),
    ("\n\nso it is", False, "", "\n\nso it is"),
    ("a <think> is a marker", False, "", "a <think> is a marker"),
    ("why</think>a </think> b <think> c", True, "why", "a </think> b <think> c"),
    ("never ends ", True, "never ends", ""),
    ("a < b </thin k</think>x", True, "a < b </thin k", "x"),
    ("<thi", False, "", "<thi"),
    ("<thinker>", False, "", "<thinker>"),
    ("why</think>\n\n", True, "why", ""),
    ("a</think", True, "a</think", ""),
    ("", True, "", ""),
    ("", False, "", ""),
]


@pytest.mark.parametrize(("text", "started", "reasoning", "content"), CASES)
def test_parts_are_told_apart(text, started, reasoning, content):
    assert texts(split([text], started=started)) == (reasoning, content)


@pytest.mark.parametrize(("text", "started", "reasoning", "content"), CASES)
def test_the_cut_into_pieces_does_not_matter(text, started, reasoning, content):
    assert texts(split(list(text), started=started)) == (reasoning, content)
    for place in range(len(text) + 1):
        pieces = [text[:place], text[place:]]
        assert texts(split(pieces, started=started)) == (reasoning, content)


ALPHABET = st.sampled_from(["<think>", "</think>", "<", "th", "/", ">", "\n", " ", "a", "é"])


@given(parts=st.lists(ALPHABET, max_size=12), cuts=st.data(), started=st.booleans())
def test_any_text_in_any_pieces_is_accounted_for(parts, cuts, started):
    text = "".join(parts)
    places = sorted(cuts.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    segments = split(pieces, started=started)
    assert sum(segment.consumed for segment in segments) == len(text)
    assert texts(segments) == texts(split([text], started=started))
    kinds = [segment.kind for segment in segments if segment.text]
    assert kinds == sorted(kinds, key=["reasoning", "content"].index)


def test_what_is_certain_is_not_held_back():
    splitter = ReasoningSplitter("<think>", "</think>", started=True)
    assert [s.text for s in splitter.feed("because x")] == ["because x"]
    assert [s.text for s in splitter.feed(" </thi")] == []
    assert splitter.inside
    assert [s.text for s in splitter.feed("s")] == [" </this"]
    assert [s.text for s in splitter.feed("</think>yes")] == ["", "yes"]
    assert not splitter.inside

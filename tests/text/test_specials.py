"""Special tokens in text: longer ones are cut out first, at any position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text.specials import SpecialMatcher


def naive_split(text: str, specials: dict[str, int]) -> list[str | int]:
    """One special after the other, each cutting what the ones before it left."""
    parts: list[str | int] = [text]
    for special in sorted(specials, key=lambda s: (-len(s.encode()), s)):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for index, plain in enumerate(part.split(special)):
                cut.extend([specials[special]] if index else [])
                cut.append(plain)
        parts = cut
    return [part for part in parts if part != ""]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("plain", ["plain"]),
        ("<a>", [0]),
        ("x<a>y", ["x", 0, "y"]),
        ("<a><a>", [0, 0]),
        ("<a", ["<a"]),
        ("<<a>>", ["<", 0, ">"]),
        ("<a><b>", [2]),
        ("<a><b", [0, "<b"]),
        ("é🙂<a>é", ["é🙂", 0, "é"]),
        ("1+1", [3, "+", 3]),
    ],
)
def test_text_is_split_at_specials(text: str, parts: list[str | int]) -> None:
    assert SpecialMatcher({"<a>": 0, "<b>": 1, "<a><b>": 2, "1": 3}).split(text) == parts


def test_the_longer_of_two_overlapping_specials_wins_even_if_it_begins_later() -> None:
    assert SpecialMatcher({"ab": 0, "bcd": 1}).split("abcd") == ["a", 1]


def test_length_is_counted_in_bytes() -> None:
    assert SpecialMatcher({"abc": 0, "céé": 1}).split("abcéé") == ["ab", 1]


def test_a_run_of_blanks_is_cut_into_the_longest_specials() -> None:
    runs = {" " * count: count for count in range(2, 32)}
    assert SpecialMatcher(runs).split("a" + " " * 200) == ["a", *[31] * 6, 14]


def test_an_empty_special_is_never_found() -> None:
    assert SpecialMatcher({"": 0}).split("a") == ["a"]


@given(
    st.sets(st.text("abé", min_size=1, max_size=4), max_size=6),
    st.text("abé<", max_size=24),
)
def test_split_equals_cutting_by_one_special_after_the_other(specials: set[str], text: str) -> None:
    ids = {special: index for index, special in enumerate(sorted(specials))}
    assert SpecialMatcher(ids).split(text) == naive_split(text, ids)

"""Stop strings: no part of them is shown, no other text is held back, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text.stop import StopScanner

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("abc", max_size=5), max_size=10)


def shown_by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character until a stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_without_stops_all_text_passes_at_once() -> None:
    scanner = StopScanner(())
    assert scanner.feed("abc") == "abc"
    assert scanner.finish() == ""


def test_only_a_possible_beginning_is_held_back() -> None:
    scanner = StopScanner(["END"])
    assert scanner.feed("the E") == "the "
    assert scanner.feed("N") == ""
    assert scanner.feed("O") == "ENO"
    assert scanner.feed("EEN") == "E"
    assert scanner.finish() == "EN"


def test_the_text_before_a_stop_is_shown_and_the_rest_is_dropped() -> None:
    scanner = StopScanner(["\n\n"])
    assert scanner.feed("a\n") == "a"
    assert scanner.feed("\nb") == ""
    assert scanner.hit == "\n\n"
    assert scanner.feed("more") == ""
    assert scanner.finish() == ""


@pytest.mark.parametrize(
    ("stops", "text", "shown", "hit"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabcd", "x", "abc"),
        (["", "b"], "ab", "a", "b"),
        (["aab"], "aaab", "a", "aab"),
        (["🙂!"], "ok 🙂!", "ok ", "🙂!"),
    ],
)
def test_the_first_complete_stop_wins_and_of_equals_the_longest(
    stops: list[str], text: str, shown: str, hit: str
) -> None:
    scanner = StopScanner(stops)
    assert scanner.feed(text) + scanner.finish() == shown
    assert scanner.hit == hit


@given(STOPS, PIECES)
def test_the_result_does_not_depend_on_how_text_is_cut(stops: list[str], pieces: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(piece) for piece in pieces) + scanner.finish()
    assert (shown, scanner.hit) == shown_by_definition("".join(pieces), stops)


@given(STOPS, st.text("abc", max_size=30))
def test_what_is_held_back_begins_a_stop_and_nothing_longer_does(
    stops: list[str], text: str
) -> None:
    scanner = StopScanner(stops)
    shown = scanner.feed(text)
    if scanner.hit is None:
        held = text[len(shown) :]
        beginnings = [
            suffix
            for suffix in (text[start:] for start in range(len(text)))
            if any(stop.startswith(suffix) and stop != suffix for stop in stops)
        ]
        assert held == max(beginnings, key=len, default="")

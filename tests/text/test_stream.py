"""Incremental text: whole characters, equal to decoding at once, cut off at a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text.formats import ChatFormat
from kinfolk.text.stream import Detokenizer, TextStream

CONTROL, USER_DEFINED = 3, 4


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    """Token ids 0 to 255 are bytes."""
    return make_tokenizer(
        ["h i"],
        [("<end>", CONTROL), ("<think>", USER_DEFINED), ("<call>", CONTROL)],
        chat=ChatFormat(tool_call=("<call>", "</call>")),
    )


def deltas(tokenizer, data: bytes) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.feed(byte) for byte in data), stream.finish()]


def test_a_character_is_shown_with_its_last_byte(tokenizer) -> None:
    assert deltas(tokenizer, "é€🙂".encode()) == ["", "é", "", "", "€", "", "", "", "🙂", ""]


def test_impossible_bytes_are_replaced_at_once(tokenizer) -> None:
    assert deltas(tokenizer, b"\x80a\xffb") == ["\ufffd", "a", "\ufffd", "b", ""]


def test_a_character_that_is_broken_off_is_replaced_when_that_is_known(tokenizer) -> None:
    assert deltas(tokenizer, b"\xe2\x82a") == ["", "", "\ufffda", ""]


def test_bytes_that_wait_at_the_end_are_one_replacement(tokenizer) -> None:
    assert deltas(tokenizer, b"a\xf0\x9f\x99") == ["a", "", "", "", "\ufffd"]


def test_surrogates_written_as_bytes_are_replaced(tokenizer) -> None:
    assert "".join(deltas(tokenizer, b"\xed\xa0\x80")) == "\ufffd" * 3


@given(
    data=st.binary(max_size=24) | st.text(max_size=12).map(lambda s: s.encode("utf-8", "replace"))
)
def test_the_stream_equals_decoding_at_once(tokenizer, data: bytes) -> None:
    assert "".join(deltas(tokenizer, data)) == tokenizer.decode(data)


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=12))
def test_whole_characters_are_never_shown_broken(tokenizer, text: str) -> None:
    assert not any("\ufffd" in delta for delta in deltas(tokenizer, text.encode()))


def test_control_tokens_are_hidden_even_inside_a_character(tokenizer) -> None:
    end = tokenizer.encode("<end>")[0]
    stream = Detokenizer(tokenizer)
    assert [stream.feed(token) for token in (0xC3, end, 0xA9)] == ["", "", "é"]


def test_control_tokens_are_shown_on_request(tokenizer) -> None:
    stream = Detokenizer(tokenizer, show_control=True)
    assert stream.feed(tokenizer.encode("<end>")[0]) == "<end>"


def test_user_defined_tokens_and_markers_of_the_chat_format_are_shown(tokenizer) -> None:
    stream = TextStream(tokenizer)
    assert stream.feed(tokenizer.encode("<think>hi<call><end>")) == "<think>hi<call>"


def test_a_stop_string_ends_the_stream_and_counts_the_tokens_used(tokenizer) -> None:
    stream = TextStream(tokenizer, ["\n\n"])
    assert stream.feed(b"ab\n") == "ab"
    assert stream.stop is None
    assert stream.feed(b"\ncd") == ""
    assert stream.stop == "\n\n"
    assert stream.tokens == 4
    assert stream.feed(b"ef") == ""
    assert stream.finish() == ""
    assert stream.tokens == 4


def test_a_stop_string_may_end_inside_a_token(tokenizer) -> None:
    stream = TextStream(tokenizer, ["h"])
    assert stream.feed(tokenizer.encode("a hi")) == "a "
    assert stream.stop == "h"


def test_what_was_held_back_comes_at_the_end(tokenizer) -> None:
    stream = TextStream(tokenizer, ["€!"])
    assert stream.feed("a€".encode()) == "a"
    assert stream.finish() == "€"


def test_a_stop_string_may_be_completed_by_the_end(tokenizer) -> None:
    stream = TextStream(tokenizer, ["\ufffd"])
    assert stream.feed(b"a\xc3") == "a"
    assert stream.finish() == ""
    assert stream.stop == "\ufffd"

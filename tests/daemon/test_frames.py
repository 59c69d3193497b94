"""Frames: the bytes that are written down, and streams that are cut anywhere."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.daemon.frames import (
    ENDED,
    FAILED,
    TAG,
    TURN_OVER,
    FrameReader,
    TextReader,
    Wire,
    encode,
    encode_text,
)

WORDS = st.one_of(st.integers(0, 2**31 - 1), st.sampled_from([ENDED, TURN_OVER]))


@pytest.mark.parametrize(
    ("word", "written"),
    [
        (151644, "feffffff 07000000 5c500200"),
        (TURN_OVER, "feffffff 07000000 fcffffff"),
        (ENDED, "feffffff 07000000 ffffffff"),
    ],
)
def test_a_tagged_frame_has_twelve_bytes(word, written):
    assert encode(Wire.TAGGED, 7, word) == bytes.fromhex(written)
    assert encode(Wire.TAGGED_V2, 7, word) == bytes.fromhex(written)


def test_a_legacy_stream_is_bare_integers():
    words = (5, TURN_OVER, ENDED)
    assert b"".join(encode(Wire.LEGACY, 7, word) for word in words) == bytes.fromhex(
        "05000000 fcffffff ffffffff"
    )


def test_a_text_is_sent_in_frames_of_four_bytes_and_ends_with_a_zero():
    head = "fdffffff 03000000 "
    assert encode_text(3, "größe") == bytes.fromhex(head + "6772c3b6" + head + "c39f6500")
    assert encode_text(3, "four") == bytes.fromhex(head + "666f7572" + head + "00000000")
    assert encode_text(3, "") == bytes.fromhex(head + "00000000")


@given(
    wire=st.sampled_from(Wire),
    sent=st.lists(st.tuples(st.integers(0, 2**30 - 1), WORDS, st.none() | st.text(max_size=9))),
    cuts=st.lists(st.integers(0, 400)),
)
def test_streams_that_are_cut_anywhere_come_apart_into_the_frames_that_were_sent(wire, sent, cuts):
    expected, stream = [], b""
    for request, word, text in sent:
        if text is not None and wire is Wire.TAGGED_V2:
            expected.append((request, text.replace("\0", "")))
            stream += encode_text(request, text)
        else:
            expected.append((request if wire.tagged else 0, word))
            stream += encode(wire, request, word)
    reader, texts, found, start = FrameReader(wire), TextReader(), [], 0
    for stop in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        for frame in reader.feed(stream[start:stop]):
            what = frame.word if frame.tag == TAG else texts.feed(frame)
            if what is not None:
                found.append((frame.request, what))
        start = stop
    assert found == expected
    assert reader.rest == 0


@given(
    streams=st.dictionaries(st.integers(1, 9), st.lists(WORDS, max_size=6)),
    random=st.randoms(),
)
def test_interleaved_frames_come_apart_into_the_streams_of_the_requests(streams, random):
    left = {request: list(words) for request, words in streams.items() if words}
    written = b""
    while left:
        request = random.choice(sorted(left))
        written += encode(Wire.TAGGED, request, left[request].pop(0))
        if not left[request]:
            del left[request]
    found = defaultdict(list)
    for frame in FrameReader(Wire.TAGGED).feed(written):
        found[frame.request].append(frame.word)
    assert found == {request: words for request, words in streams.items() if words}


@pytest.mark.parametrize("wire", [Wire.TAGGED, Wire.TAGGED_V2])
def test_bytes_that_begin_no_frame_are_refused(wire):
    with pytest.raises(ValueError, match="no frame begins with -9"):
        list(FrameReader(wire).feed(bytes.fromhex("f7ffffff 00000000 00000000")))


def test_a_failure_has_a_word_of_its_own():
    assert encode(Wire.TAGGED_V2, 1, FAILED)[8:] == bytes.fromhex("fbffffff")

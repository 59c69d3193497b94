"""The order of what is written: turns stand together, and each stream keeps its own order."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.daemon.frames import FrameReader, Wire
from kinfolk.daemon.output import Output

DONE, OVER = -1, -4
SCRIPT = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["token", "token", "over", "done", "reply"]))
)


def played(wire, script):
    """What was put in, by request, and the frames that came out; open turns are ended."""
    written, put, running = bytearray(), defaultdict(list), set()
    output = Output(wire, written.extend, lambda text: None)

    def over(request):
        output.turn_over(request)
        put[request].append(OVER)
        running.discard(request)

    for number, (request, what) in enumerate(script):
        if what == "token":
            output.token(request, number)
            put[request].append(number)
            running.add(request)
        elif what == "over":
            over(request)
        elif what == "done":
            output.done(request)
            put[request].append(DONE)
            running.discard(request)
        elif request not in running:  # the session replies on a stream between turns
            output.reply(request)
            put[request].append(DONE)
    for request in sorted(running):
        over(request)
    return put, [(f.request, f.word) for f in FrameReader(wire).feed(bytes(written))]


@pytest.mark.parametrize("wire", [Wire.TAGGED, Wire.TAGGED_V2])
@given(script=SCRIPT)
def test_every_stream_comes_out_as_it_was_put_in(wire, script):
    put, frames = played(wire, script)
    found = defaultdict(list)
    for request, word in frames:
        found[request].append(word)
    assert found == put


@given(script=SCRIPT)
def test_no_turn_has_frames_of_others_in_it(script):
    """Replies to commands may come in between: they are not of a turn."""
    _, frames = played(Wire.TAGGED, [each for each in script if each[1] != "reply"])
    for request, group in groupby(frames, key=lambda frame: frame[0]):
        words = [word for _, word in group]
        assert words[-1] < 0, f"the turn of {request} was interrupted"


def test_a_reply_on_the_stream_of_a_turn_waits_for_its_end():
    written = bytearray()
    output = Output(Wire.TAGGED, written.extend, lambda text: None)
    output.token(7, 5)
    output.reply(7)
    output.reply(0)
    output.token(7, 6)
    output.turn_over(7)
    found = [(f.request, f.word) for f in FrameReader(Wire.TAGGED).feed(bytes(written))]
    assert found == [(7, 5), (0, DONE), (7, 6), (7, OVER), (7, DONE)]

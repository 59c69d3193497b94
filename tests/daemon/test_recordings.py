"""The bytes of recorded streams: what clients of this wire were written for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from talk import Talk

from kinfolk.daemon.frames import Wire

RECORDINGS = Path(__file__).parents[1] / "data" / "wire"


def recording(name):
    """The lines of a recording, and the bytes that answer each of them."""
    answers = {}
    for text in (RECORDINGS / f"{name}.txt").read_text().splitlines():
        way, _, rest = text.partition(" ")
        if way == "in":
            line = rest.strip()
            assert line not in answers
            answers[line] = b""
        elif way == "out":
            answers[line] += bytes.fromhex(rest)
    return answers


@pytest.fixture
def client(engine, loaded, cases, tmp_path):
    """``client(wire)``: a connection, and the files of the recordings."""
    tokens = np.load(cases / "qwen35.npz")["tokens"].tolist()

    def connect(wire):
        talk = Talk(engine(model=loaded), tmp_path, wire, slots=2)
        talk.file("a.bin", tokens[:20])
        talk.file("b.bin", tokens[:45])
        return talk

    return connect


@pytest.mark.parametrize(
    ("name", "wire", "together"),
    [("legacy", Wire.LEGACY, True), ("legacy", Wire.LEGACY, False), ("tagged", Wire.TAGGED, False)],
)
def test_the_stream_is_the_recorded_one_byte_for_byte(client, tmp_path, name, wire, together):
    """``together``: all lines are sent at once."""
    talk, answers = client(wire), recording(name)
    lines = [line.format(folder=tmp_path) for line in answers]
    if together:
        talk.say(*lines)
    else:
        wanted = 0
        for line, answer in zip(lines, answers.values(), strict=True):
            talk.say(line)
            wanted += len(answer)
            while len(talk.raw) < wanted:
                assert talk.read()
    talk.end()
    assert talk.raw == b"".join(answers.values())


def test_the_recorded_first_tokens_are_those_of_the_reference(cases):
    logits = np.load(cases / "qwen35.npz")["logits"]
    answers = list(recording("legacy").values())
    for answer, length in ((answers[0], 20), (answers[2], 45)):
        assert np.frombuffer(answer, "<i4")[0] == logits[length - 1].argmax()

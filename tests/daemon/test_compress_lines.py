"""``compress`` and ``free drafter`` among the other lines of a session, with a toy that compresses
when the test wants it."""

from __future__ import annotations

import struct
import threading

import pytest

from kinfolk.daemon.frames import Wire
from kinfolk.errors import EngineError, RequestError

DONE, FAILED = -1, -5


class Toy:
    """Keeps every third token once ``open`` is set; ends when it is cancelled."""

    def __init__(self):
        self.open = threading.Event()
        self.calls = []
        self.error: Exception | None = None
        self.parks = False

    def compress(self, path, tokens, ratio, *, park, cancelled):
        self.calls.append((path, tokens, ratio, park))
        for _ in range(6000):
            if self.open.wait(0.005) or cancelled.is_set():
                break
        if cancelled.is_set():
            self.calls.append("cancelled")
            raise RequestError("it was cancelled")
        assert self.open.is_set()
        if self.error is not None:
            raise self.error
        return tokens[::3]

    def free(self):
        self.calls.append("free")
        assert self.open.wait(30)


@pytest.fixture
def begin(scene):
    """``begin(wire)``: a session, its toy, and what waits until the toy has answered."""

    def start(wire=Wire.TAGGED_V2, **options):
        toy = Toy()
        s = scene(wire, compressor=toy, **options)

        def settled(holds):
            for _ in range(3000):
                s.settle()
                s.run()
                if holds():
                    return
                threading.Event().wait(0.01)
            raise AssertionError(s.frames)

        return s, toy, settled

    return start


def compress(s, number=0, more="", name="a"):
    return f"REQ {number} compress {s.folder}/{name}.bin 400 drafter.gguf {more}"


def replies(s, number):
    return sum(frame == (number, DONE) for frame in s.frames)


def test_what_is_kept_comes_as_tokens_and_one_end(begin, prompts):
    s, toy, settled = begin()
    toy.open.set()
    s.say(compress(s, 7))
    settled(lambda: s.frames)
    assert s.frames == [*((7, token) for token in prompts["a"][::3]), (7, DONE)]
    assert s.texts[-1] == f"kept=7 of={len(prompts['a'])}"
    assert toy.calls == [("drafter.gguf", prompts["a"], 0.4, True)]


def test_a_bare_stream_has_the_tokens_as_words_and_then_the_end(begin, prompts):
    s, toy, settled = begin(Wire.LEGACY)
    toy.open.set()
    s.say(f"compress {s.folder}/b.bin 250 x.gguf nopark")
    settled(lambda: s.written.endswith(struct.pack("<i", DONE)))
    kept = prompts["b"][::3]
    assert s.written == struct.pack(f"<{len(kept) + 1}i", *kept, DONE)
    assert toy.calls[0][3] is False


def test_tabs_allow_blanks_in_both_paths(begin, prompts):
    s, toy, settled = begin()
    toy.open.set()
    s.file("two words.bin", prompts["b"])
    s.say(f"COMPRESS\t{s.folder}/two words.bin\t1000\tmy drafter.gguf\tnopark")
    settled(lambda: replies(s, 0) == 1)
    assert toy.calls == [("my drafter.gguf", prompts["b"], 1.0, False)]


def test_lines_behind_it_wait_and_a_cancel_does_not(begin, prompts):
    s, toy, settled = begin()
    s.say(f"REQ 1 START {s.folder}/a.bin 6 2", compress(s, 9, "nopark"), "REQ 2 LIST_REQUESTS")
    settled(lambda: toy.calls)
    assert replies(s, 2) == replies(s, 9) == 0
    s.say("REQ 3 CANCEL 1")
    assert replies(s, 3) == replies(s, 1) == 1
    toy.open.set()
    settled(lambda: replies(s, 2) == 1)
    assert replies(s, 9) == 1


def test_turns_of_a_drain_go_on_meanwhile(begin, prompts):
    s, toy, settled = begin(slots=2)
    s.say(f"REQ 1 START {s.folder}/a.bin 9 1")
    s.send("REQ 5 SCHED_DRAIN", compress(s, 9, "nopark"))
    s.run()
    settled(lambda: replies(s, 5) == 1)
    assert s.tokens[1] == s.solo(prompts["a"], 9)
    assert replies(s, 9) == 0
    toy.open.set()
    settled(lambda: replies(s, 9) == 1)


def test_the_end_of_the_lines_waits_for_it(begin):
    s, toy, settled = begin()
    s.say(compress(s, 4))
    settled(lambda: toy.calls)
    s.end()
    assert not s.session.over
    toy.open.set()
    settled(lambda: s.session.over)
    assert replies(s, 4) == 1


def test_the_end_of_the_lines_ends_nothing_that_waits_for_unparking(begin, prompts):
    """Another session compresses, and has parked the target: it will come back by itself."""
    s, toy, settled = begin()
    toy.parks = True
    s.engine.park("target")
    s.say(f"REQ 1 START {s.folder}/a.bin 4 4", "SCHED_DRAIN")
    s.end()
    assert not s.session.over
    toy.parks = False
    s.engine.unpark("target")
    settled(lambda: s.session.over)
    assert s.tokens[1] == s.solo(prompts["a"], 4)


def test_it_ends_and_nobody_is_told_when_the_reader_has_gone(begin):
    s, toy, settled = begin()
    s.say(compress(s))
    settled(lambda: toy.calls)
    s.session.abandon()
    assert s.session.over
    settled(lambda: toy.calls[-1] == "cancelled")
    assert s.frames == []


@pytest.mark.parametrize("line", ["REQ 3 CANCEL 9", "REQ 9 CANCEL"])
def test_a_cancel_ends_it_and_each_line_has_its_reply(begin, line):
    s, toy, settled = begin()
    s.say(compress(s, 9), "REQ 2 LIST_REQUESTS")
    settled(lambda: toy.calls)
    s.say(line)
    settled(lambda: replies(s, 2) == 1)
    number = int(line.split()[1])
    assert s.frames[:3] == [(number, DONE), (9, FAILED), (9, DONE)]
    assert s.texts[:2] == ["compress 9 is about to end", "err it was cancelled"]
    toy.open.set()
    s.say(compress(s, 9))
    settled(lambda: replies(s, 9) == (3 if number == 9 else 2))
    assert s.tokens[9], "another one begins afresh"


def test_a_bare_stream_answers_the_cancel_behind_what_it_ends(begin, prompts):
    s, toy, settled = begin(Wire.LEGACY)
    s.say(compress(s, 9))
    settled(lambda: toy.calls)
    s.say("CANCEL 9")
    settled(lambda: len(s.written) >= 8)
    assert s.written == struct.pack("<2i", DONE, DONE)
    assert s.texts == ["err it was cancelled", "compress 9 is about to end"]


def test_a_cancel_of_another_request_or_of_none_does_not_end_it(begin, prompts):
    s, toy, settled = begin()
    s.say(compress(s, 0))
    settled(lambda: toy.calls)
    s.say("REQ 3 CANCEL 9", "REQ 4 CANCEL 0")
    assert (replies(s, 3), replies(s, 4), replies(s, 0)) == (1, 1, 0)
    toy.open.set()
    settled(lambda: replies(s, 0) == 1)
    assert s.tokens[0] == list(prompts["a"][::3])


def test_what_has_not_begun_is_withdrawn(begin):
    s, toy, settled = begin()
    s.say(compress(s, 8), compress(s, 9), compress(s, 7))
    settled(lambda: toy.calls)
    s.say("REQ 3 CANCEL 9")
    assert s.frames == [(9, FAILED), (9, DONE), (3, DONE)]
    toy.open.set()
    settled(lambda: replies(s, 7) == 1)
    assert (len(toy.calls), replies(s, 8), replies(s, 9)) == (2, 1, 1)


def test_freeing_is_one_reply_when_it_is_done(begin):
    s, toy, settled = begin()
    s.say("REQ 3 free drafter", "REQ 4 drafter free")
    settled(lambda: toy.calls)
    assert s.frames == []
    toy.open.set()
    settled(lambda: replies(s, 4) == 1)
    assert (toy.calls, replies(s, 3)) == (["free", "free"], 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("REQ 9 compress {folder}/none.bin 400 d.gguf nopark", "none.bin': cannot be read"),
        ("REQ 9 compress {folder}/odd.bin 400 d.gguf nopark", "5 bytes are no 32-bit integers"),
        ("REQ 9 compress {folder}/a.bin 400 d.gguf", "compress: requests 1 have not ended"),
        ("REQ 1 compress {folder}/a.bin 400 d.gguf nopark", "request 1 has not ended"),
    ],
)
def test_a_mistake_is_one_reply_and_leaves_everything_running(begin, prompts, line, message):
    s, toy, _ = begin()
    (s.folder / "odd.bin").write_bytes(b"12345")
    s.say(f"REQ 1 START {s.folder}/a.bin 4 2")
    before = len(s.frames)
    number = int(line.split()[1])
    s.say(line.format(folder=s.folder))
    assert s.frames[before:] == [(number, FAILED), (number, DONE)]
    assert message in s.texts[-1]
    assert toy.calls == []
    s.say("SCHED_DRAIN")
    assert s.tokens == {1: s.solo(prompts["a"], 4)}


@pytest.mark.parametrize("error", [EngineError("no room"), RuntimeError("a bug")])
def test_what_fails_in_it_is_one_reply_with_the_reason(begin, error):
    s, toy, settled = begin()
    toy.error = error
    toy.open.set()
    s.say(compress(s, 6), "REQ 2 LIST_REQUESTS")
    settled(lambda: replies(s, 2) == 1)
    assert s.frames[:2] == [(6, FAILED), (6, DONE)]
    assert str(error) in s.texts[0]


def test_a_file_that_is_too_long_is_refused_with_the_limit(begin, monkeypatch):
    monkeypatch.setattr("kinfolk.daemon.compressing.MAX_COMPRESSED_TOKENS", 19)
    s, toy, _ = begin()
    assert s.say(compress(s, 3)) == [(3, FAILED), (3, DONE)]
    assert "has 20 tokens, compress takes at most 19" in s.texts[-1]
    assert toy.calls == []

"""Connections with a real engine: streams, ends of either side, slow readers, faults, sockets."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time

import pytest
from talk import TALK_SECONDS, Talk, eventually

from kinfolk.daemon.connection import MAX_LINE
from kinfolk.daemon.frames import Wire
from kinfolk.daemon.listener import accept, listening
from kinfolk.daemon.outbox import REPLY_BYTES, Outbox
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.errors import SettingsError

DONE, OVER, FAILED = -1, -4, -5


@pytest.fixture
def talk(engine, tmp_path):
    """``talk(wire, ...)``: a connection to an engine of the tiny model, with the file p.bin."""
    opened = []

    def start(*arguments, **options):
        made = Talk(engine(), tmp_path, *arguments, **options)
        made.file("p.bin", list(range(5, 40)))
        opened.append(made)
        return made

    yield start
    for each in opened:
        each.hang_up()
        each.wait()


def test_a_request_goes_on_over_several_lines(talk):
    t = talk()
    t.say(f"REQ 1 START {t.folder}/p.bin 6 2")
    t.until(1, OVER)
    t.say("REQ 1 CONTINUE 2", "REQ 1 CONTINUE 9")
    t.until(1, DONE)
    assert [word for _, word in t.frames if word < 0] == [OVER, OVER, DONE]
    assert len(t.tokens[1]) == 6
    t.end()
    assert t.lost == ""


def test_everything_that_was_begun_is_finished_after_the_last_line(talk):
    t = talk()
    t.say(f"REQ 1 START {t.folder}/p.bin 6 2", f"REQ 2 START {t.folder}/p.bin 5 5", "SCHED_DRAIN")
    t.end()
    assert t.tokens[1][:5] == t.tokens[2]
    assert t.frames[-1] == (0, DONE)
    assert t.lost == ""


def test_a_line_without_an_end_is_a_line_and_one_that_is_too_long_is_answered(talk):
    t = talk()
    t.say("x" * (MAX_LINE + 100), "REQ 5 LIST_SLOTS")
    os.write(t._lines, b"REQ 6 LIST_SLOTS")
    t.end()
    assert t.frames == [(0, FAILED), (0, DONE), (5, DONE), (6, DONE)]
    assert t.texts[0] == [f"err a line has at most {MAX_LINE} bytes; this one was dropped"]


@pytest.mark.parametrize(("wire", "word"), [(Wire.LEGACY, DONE), (Wire.TAGGED_V2, FAILED)])
def test_a_line_that_is_too_long_is_answered_at_once(talk, wire, word):
    t = talk(wire)
    t.say("x" * (MAX_LINE + 100))
    t.until(0, word)
    t.end()


def test_more_lines_than_are_kept_wait_with_their_sender(talk):
    t = talk(Wire.TAGGED)
    t.say(f"REQ 1 START {t.folder}/p.bin 4 2")
    for _ in range(50):
        t.say(*["REQ 5 LIST_SLOTS"] * 100)
    t.end()
    assert t.frames.count((5, DONE)) == 5000


@pytest.mark.parametrize("taken", [1, 3, 7, 4096])
def test_17_short_writes_lose_nothing(talk, taken):
    written = bytearray()

    def write(data):
        written.extend(data[:taken])
        return len(data[:taken])

    t = talk(Wire.TAGGED, write=write)
    t.say(f"REQ 1 START {t.folder}/p.bin 6 2", "SCHED_DRAIN")
    t.end()
    frames = [(f.request, f.word) for f in t._frames.feed(bytes(written))]
    assert [word for _, word in frames if word < 0] == [OVER, OVER, DONE]
    assert len(frames) == 9


def test_17_a_reader_that_leaves_ends_its_requests(talk, engines):
    t = talk()
    t.say(f"REQ 1 START {t.folder}/p.bin 400 1", f"REQ 2 START {t.folder}/p.bin 400 400")
    t.until(1, OVER)
    t.leave()
    t.wait()
    assert t.lost
    eventually(lambda: engines[-1].view() == ())


def test_17_a_reader_that_takes_nothing_is_dropped_and_the_engine_goes_on(talk, engines):
    released = threading.Event()

    def write(data):
        released.wait(TALK_SECONDS)
        return len(data)

    t = talk(Wire.TAGGED, write=write, most=1200)
    other = Talk(engines[-1], t.folder)
    t.say(f"REQ 1 START {t.folder}/p.bin 4 2", *["REQ 5 nonsense"] * 200)
    other.say(f"REQ 9 START {t.folder}/p.bin 5 5")
    other.end()
    assert len(other.tokens[9]) == 5
    eventually(lambda: engines[-1].view() == ())
    t.wait()
    released.set()
    assert "wait for a reader that is too slow" in t.lost


def test_a_step_that_fails_ends_each_request_once_and_the_next_one_works(talk, monkeypatch):
    t = talk()
    t.say(f"REQ 1 START {t.folder}/p.bin 9 1", f"REQ 2 START {t.folder}/p.bin 9 1")
    t.until(1, OVER)
    t.until(2, OVER)
    launch = ModelRunner.launch

    def fails(*arguments):
        monkeypatch.setattr(ModelRunner, "launch", launch)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(ModelRunner, "launch", fails)
    t.say(f"REQ 3 START {t.folder}/p.bin 9 9")
    for request in (1, 2, 3):
        t.until(request, DONE)
    t.say(f"REQ 4 START {t.folder}/p.bin 3 3")
    t.until(4, DONE)
    t.end()
    ends = [frame for frame in t.frames if frame[1] in (DONE, FAILED)]
    assert sorted(ends[:6]) == sorted((r, mark) for r in (1, 2, 3) for mark in (FAILED, DONE))
    assert ends[6:] == [(4, DONE)]
    assert len(t.tokens[4]) == 3


def test_a_probe_of_the_real_engine_agrees_and_changes_nothing(talk, engines):
    t = talk(Wire.TAGGED)
    for request in (1, 2, 3):
        sampling = " samp=0.8,0.95,0,1.3,7" if request == 2 else ""
        t.say(f"REQ {request} START {t.folder}/p.bin 8 2{sampling}")
        t.until(request, OVER)
    before = engines[-1].view()
    t.say("REQ 7 SCHED_BATCH_PROBE", "REQ 8 SCHED_BATCH_PROBE")
    t.until(8, DONE)
    assert t.said[-1] == "probe sequences=3 mismatches=0\n"
    assert engines[-1].view() == before
    t.say("SCHED_BATCH_DRAIN")
    t.end()
    assert t.tokens[1] == t.tokens[3]
    assert len(t.tokens[2]) == 8


def test_an_outbox_never_blocks_and_says_once_that_its_reader_is_lost():
    released, reasons = threading.Event(), []
    box = Outbox(lambda data: released.wait(TALK_SECONDS) and None, reasons.append, most=100)
    started = time.monotonic()
    for _ in range(1000):
        box.put(b"x" * 60)
    assert time.monotonic() - started < TALK_SECONDS / 2
    assert reasons == ["more than 100 bytes wait for a reader that is too slow"]
    released.set()
    box.close()


def test_a_long_reply_may_wait_though_other_bytes_may_not():
    held, reasons, read = threading.Event(), [], bytearray()

    def write(data):
        held.wait(TALK_SECONDS)
        read.extend(data)

    box = Outbox(write, reasons.append, most=100)
    reply = b"r" * (REPLY_BYTES + 1)
    for data in (b"x", reply, b"y" * 60):
        box.put(data)
    assert reasons == []
    held.set()
    box.close()
    assert read == b"x" + reply + b"y" * 60


def test_of_long_replies_one_may_wait():
    released, reasons = threading.Event(), []
    box = Outbox(lambda data: released.wait(TALK_SECONDS) and None, reasons.append, most=100)
    box.put(b"x")
    eventually(lambda: not box._bytes)  # the writer has taken it
    for _ in range(2):
        box.put(b"r" * (REPLY_BYTES + 1))
    assert reasons == ["more than 100 bytes wait for a reader that is too slow"]
    released.set()
    box.close()


# -- sockets ---------------------------------------------------------------------------------------


@pytest.fixture
def served(engine, tmp_path):
    """The path of a socket, and a way to connect to it."""
    from kinfolk.daemon.connection import Connection
    from kinfolk.daemon.surroundings import SessionOptions

    running, path = engine(), tmp_path / "daemon.sock"

    def serve(connection, number):
        options = SessionOptions(f"s{number}", 8, 512)
        lines = connection.makefile("rb")
        Connection(running, options, Wire.TAGGED, lines, connection.send, lambda data: None).run()

    with listening(path) as listener:
        thread = threading.Thread(target=accept, args=(listener, serve), daemon=True)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(TALK_SECONDS)
    assert not path.exists()


def call(path, *lines, close=True):
    """Send lines, and return all that is answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TALK_SECONDS)
        client.connect(str(path))
        client.sendall("".join(f"{line}\n" for line in lines).encode())
        if close:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_those_who_are_served_go_on_where_no_more_can_be(caplog):
    """A client that opens more connections than the system allows files ends no session."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    answers = [OSError(errno.EMFILE, "Too many open files"), (near, ""), OSError(errno.EINVAL, "")]

    class Listener:
        def accept(self):
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

    accept(Listener(), lambda connection, number: connection.sendall(b"%d" % number))
    with far:
        far.settimeout(TALK_SECONDS)
        assert far.recv(9) == b"1"
    assert answers == []
    assert "a connection was not accepted: Too many open files" in caplog.text


def test_a_socket_is_for_its_user_only_and_each_connection_is_a_session(served, tmp_path):
    import numpy as np

    assert stat.S_IMODE(served.stat().st_mode) == 0o600
    np.arange(5, 40, dtype="<i4").tofile(tmp_path / "p.bin")
    line = f"REQ 1 START {tmp_path}/p.bin 6 6"
    first = call(served, line)
    assert len(first) == 12 * 7
    ended = bytes.fromhex("feffffff00000000ffffffff")
    assert call(served, line, "quit", close=False) == first + ended


def test_connections_share_the_slots_and_not_the_ids(served, tmp_path):
    import numpy as np

    np.arange(5, 40, dtype="<i4").tofile(tmp_path / "p.bin")
    found = {}

    def run(number):
        found[number] = call(served, f"REQ 1 START {tmp_path}/p.bin 9 2", "SCHED_DRAIN")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TALK_SECONDS)
    assert len(set(found.values())) == 1
    assert len(found) == 6


def test_a_path_in_use_is_refused_and_one_that_was_left_behind_is_taken(tmp_path):
    path = tmp_path / "s"
    with listening(path), pytest.raises(SettingsError, match="another program listens"):
        listening(path).__enter__()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with listening(path):
        pass
    path.write_text("")
    with pytest.raises(SettingsError, match="no socket"):
        listening(path).__enter__()

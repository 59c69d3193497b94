"""The thread of the disk tier: order, cancelling, closing."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest
from disk_scenes import ToyDisk, files, text

from kinfolk.state.disk_thread import DiskThread


@pytest.fixture
def toy(tmp_path):
    return ToyDisk(tmp_path / "prefix")


@pytest.fixture
def thread(toy):
    thread = DiskThread(toy.cache)
    yield thread
    thread.close(flush=False)


@pytest.fixture
def gate(monkeypatch):
    """``gate.clear()`` holds every file before its name, until ``gate.set()``; ``gate.reached`` is
    set when one waits."""
    gate, rename = threading.Event(), os.replace
    gate.set()
    gate.reached = threading.Event()

    def held(*paths):
        if not gate.is_set():
            gate.reached.set()
            assert gate.wait(60)
        rename(*paths)

    monkeypatch.setattr(os, "replace", held)
    yield gate
    gate.set()


def test_writes_and_reads_are_answered(toy, thread):
    assert thread.write(toy.entry(text(150))).result(60).outcome == "stored"
    request = toy.request(toy.found(text(150)), text(150))
    assert thread.read(request).result(60)
    assert toy.right(request, text(150))
    assert thread.pending == 0


def test_a_read_waits_for_one_file_and_not_for_all_writes(toy, thread, gate):
    toy.store(text(100))
    gate.clear()
    order = []
    writes = [thread.write(toy.entry(text(500, seed))) for seed in (1, 2)]
    assert gate.reached.wait(60)
    read = thread.read(toy.request(toy.found(text(100)), text(100)))
    for name, future in (("first", writes[0]), ("second", writes[1]), ("read", read)):
        future.add_done_callback(lambda _, name=name: order.append(name))
    gate.set()
    thread.close()
    assert order == ["read", "first", "second"]
    assert read.result()


def test_calls_come_behind_writes(toy, thread, gate):
    gate.clear()
    write = thread.write(toy.entry(text(100)))
    key = toy.entry(text(100))
    named = thread.call(lambda: toy.cache.give_name("here", toy.found(text(100)).key))
    gate.set()
    assert named.result(60)
    assert write.done()
    assert key.length == toy.cache.named("here").length


def test_what_has_not_begun_can_be_cancelled(toy, thread, gate):
    gate.clear()
    thread.write(toy.entry(text(100)))
    assert gate.reached.wait(60)
    second = thread.write(toy.entry(text(100, 1)))
    assert second.cancel()
    gate.set()
    thread.close()
    assert [toy.restores(text(100, seed)) for seed in range(2)] == [100, 0]


def test_closing_with_a_flush_stores_what_waits(toy, thread):
    writes = [thread.write(toy.entry(text(200, seed))) for seed in range(4)]
    thread.close()
    assert {one.result().outcome for one in writes} == {"stored"}
    assert thread.write(toy.entry(text(9))).cancelled()


def test_closing_without_a_flush_leaves_no_half_of_a_point(toy, thread, gate):
    gate.clear()
    writes = [thread.write(toy.entry(text(500, seed))) for seed in range(3)]
    assert gate.reached.wait(60)
    closing = threading.Thread(target=thread.close, kwargs={"flush": False})
    closing.start()
    while not thread.closing:
        pass
    gate.set()
    closing.join(60)
    assert isinstance(writes[0].exception(), InterruptedError)
    assert writes[1].cancelled()
    assert writes[2].cancelled()
    assert [path.name for path in files(toy.folder)] == ["salt.json", "lock"]
    assert toy.reopened().points() == []


def test_an_interrupted_close_does_not_write_on(toy, thread, gate, monkeypatch):
    gate.clear()
    writes = [thread.write(toy.entry(text(500, seed))) for seed in range(3)]
    assert gate.reached.wait(60)
    join = threading.Thread.join

    def interrupted(self, timeout=None):
        monkeypatch.setattr(threading.Thread, "join", join)
        gate.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.close()
    assert all(one.done() for one in writes)
    assert writes[2].cancelled()


def test_a_write_waits_for_another_process_and_reads_do_not(toy, thread):
    toy.store(text(100))
    with (toy.folder / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        write = thread.write(toy.entry(text(100, 1)))
        assert thread.read(toy.request(toy.found(text(100)), text(100))).result(60)
        assert not write.done()
    assert write.result(60).outcome == "stored"


def test_a_write_is_given_up_when_another_process_never_ends(toy, monkeypatch, caplog):
    monkeypatch.setattr("kinfolk.state.disk.LOCK_PATIENCE", 0.02)
    with (toy.folder / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        reports = [toy.store(text(100, seed)) for seed in range(2)]
    assert {report.outcome for report in reports} == {"dropped"}
    assert len(caplog.records) == 1
    assert "another process has been writing" in caplog.text
    assert toy.store(text(100)).outcome == "stored"


def test_a_mistake_of_the_caller_is_the_result_of_its_future(toy, thread):
    entry = toy.entry(text(100), name="a/b")
    assert "is no name" in str(thread.write(entry).exception(60))
    assert thread.write(toy.entry(text(100))).result(60).outcome == "stored"


def test_abandoned_work_is_cancelled_and_the_thread_goes_on(toy, thread, gate):
    gate.clear()
    writes = [thread.write(toy.entry(text(500, seed))) for seed in range(3)]
    assert gate.reached.wait(60)
    abandoned = threading.Thread(target=thread.abandon)
    abandoned.start()
    abandoned.join(0.05)
    assert abandoned.is_alive(), "memory of a request is still being read"
    gate.set()
    abandoned.join(60)
    assert all(one.done() for one in writes)
    assert thread.pending == 0
    assert [path.name for path in files(toy.folder)] == ["salt.json", "lock"]
    assert thread.write(toy.entry(text(100))).result(60).outcome == "stored"


def test_a_thread_that_has_ended_can_be_abandoned(thread):
    thread.close()
    thread.abandon()

"""What the reply to a snapshot promises: it is on the disk, or the reply says that it is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from talk import Talk, eventually

from kinfolk.daemon.frames import FrameReader, TextReader, Wire
from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.engine import Engine
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.state.disk import LOCK_FILE, DiskCache
from kinfolk.state.disk_files import FolderLock

SLICE = 32
DONE, OVER = -1, -4
PROMPT = [number * 13 % 400 for number in range(150)]
LIMITS = SchedulerLimits(slots=8, context=512, step_tokens=128, slice=SLICE)


@pytest.fixture
def model(load):
    return load(cache_memory=0.1)


@pytest.fixture
def opened(model, tmp_path):
    """``opened(limit=...)``: a connection to an engine with a disk, and the engine."""
    engines = []

    def talk(limit=1 << 30):
        record = replace(salt_record(model, SLICE))
        cache = DiskCache.open(tmp_path / "prefix", record, limit)
        engines.append(Engine(model, LIMITS, disk=cache))
        made = Talk(engines[-1], tmp_path)
        made.file("a.bin", PROMPT)
        return made, engines[-1]

    yield talk
    for engine in engines:
        engine.close()
        engine.check_integrity()


@pytest.fixture
def busy_disk(tmp_path):
    """Another process writes to the folder until it is told to release it."""
    (tmp_path / "prefix").mkdir(mode=0o700)
    lock = FolderLock(tmp_path / "prefix" / LOCK_FILE)
    assert lock.try_acquire()
    yield lock
    lock.release()


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "prefix").glob("*/names/*"))


# -- the reply -------------------------------------------------------------------------------------


def test_a_reply_waits_for_the_disk_and_turns_do_not(opened, busy_disk, tmp_path):
    talk, engine = opened()
    talk.say(f"REQ 1 START {tmp_path}/a.bin 9 3", f"REQ 2 START {tmp_path}/a.bin 60 2")
    talk.until(1, OVER)
    talk.until(2, OVER)
    talk.say("SCHED_DRAIN", "REQ 1 SNAPSHOT 5", "REQ 7 LIST_SLOTS", "REQ 8 LIST_REQUESTS")
    talk.until(2, DONE)
    assert not talk.texts[7]
    assert names(tmp_path) == []
    busy_disk.release()
    talk.until(8, DONE)
    assert "kept=disk" in "".join(talk.texts[1])
    assert names(tmp_path) == ["snapshot-5"]
    talk.end()
    assert len(talk.tokens[1]) == 9
    assert talk.frames.count((7, DONE)) == talk.frames.count((8, DONE)) == 1
    assert engine.stats()["draft_failures"] == 0


def test_a_cancel_does_not_wait_for_the_disk(opened, busy_disk, tmp_path):
    talk, _ = opened()
    talk.say(f"REQ 1 SLOT 0 START {tmp_path}/a.bin 9 3", "SLOT 0 SNAPSHOT 5")
    talk.until(1, OVER)
    talk.say("REQ 4 CANCEL 1")
    talk.until(4, DONE)
    assert (0, DONE) not in talk.frames
    busy_disk.release()
    talk.until(0, DONE)
    assert "kept=disk" in talk.texts[0][-1]
    talk.end()


def test_the_end_of_a_request_says_what_became_of_the_snapshot_in_its_prompt(
    opened, busy_disk, tmp_path
):
    talk, engine = opened()
    talk.say(f"REQ 1 {tmp_path}/a.bin 3 snap=100:3", f"REQ 2 SLOT 1 RESTORE 3 {tmp_path}/a.bin 3")
    eventually(lambda: engine.stats()["decode_steps"] >= 2 and not engine.stats()["running"])
    talk.say("REQ 5 LIST_SLOTS")
    busy_disk.release()
    talk.until(2, DONE)
    assert talk.frames.index((1, DONE)) < talk.frames.index((2, talk.tokens[2][0]))
    assert talk.texts[1][-1].endswith("snapshot=3 length=100 kept=disk")
    assert names(tmp_path) == ["snapshot-3"]
    talk.end()


def test_a_disk_without_room_is_said_and_the_session_has_the_snapshot(opened, tmp_path):
    talk, _ = opened(limit=1000)
    talk.say(f"REQ 1 START {tmp_path}/a.bin 9 3", "REQ 1 SNAPSHOT 5")
    talk.until(1, DONE)
    assert "snapshot=5 length=152 kept=memory not_on_disk: a prefix of" in talk.texts[1][-1]
    longer = [*PROMPT, *talk.tokens[1][:3], 7]
    talk.file("longer.bin", longer)
    talk.say(f"REQ 2 SLOT 1 RESTORE 5 {tmp_path}/longer.bin 2")
    talk.end()
    assert len(talk.tokens[2]) == 2
    assert "reused=152" in talk.texts[2][-1]


@pytest.mark.parametrize("disk", [True, False])
def test_a_snapshot_of_a_request_longer_than_its_budget_is_gone_on_from(load, tmp_path, disk):
    """Of the same session, and after a restart if there is a disk; it is not exact."""
    paging = {"kvflash": 512, "kvflash_burst": 1, "kvflash_host": 0.1, "context": 1024}
    model = load(slots=2, cache_memory=0.1, **paging)
    limits = replace(LIMITS, slots=2, context=1024)
    long = [number * 13 % 400 for number in range(700)]

    @contextmanager
    def talking():
        cache = DiskCache.open(tmp_path / "prefix", salt_record(model, SLICE), 1 << 30)
        engine = Engine(model, limits, disk=cache if disk else None)
        try:
            yield Talk(engine, tmp_path, slots=2, context=1024)
        finally:
            engine.close()
        engine.check_integrity()

    with talking() as talk:
        talk.file("long.bin", long)
        talk.say(f"REQ 1 SLOT 0 START {tmp_path}/long.bin 9 3", "REQ 1 SNAPSHOT 5")
        talk.until(1, DONE)
        known = [*long, *talk.tokens[1][:3], 7]
        talk.file("longer.bin", known)
        talk.say(f"REQ 2 SLOT 1 RESTORE 5 {tmp_path}/longer.bin 2")
        talk.end()
    place = "disk" if disk else "memory"
    assert f"snapshot=5 length=702 kept={place}" in "".join(talk.texts[1])
    assert "not_on_disk" not in "".join(talk.texts[1])
    assert "reused=702 from=host" in talk.texts[2][-1]
    assert talk.texts[2][-1].endswith("exact=no")
    if disk:
        with talking() as again:
            again.say(f"REQ 1 SLOT 1 RESTORE 5 {tmp_path}/longer.bin 2")
            again.end()
        assert "reused=702 from=disk" in again.texts[1][-1]
        assert again.texts[1][-1].endswith("exact=no")
        assert again.tokens[1] == talk.tokens[2]


def test_an_engine_that_ends_answers_what_waits(opened, busy_disk, tmp_path):
    talk, engine = opened()
    talk.say(f"REQ 1 SLOT 0 START {tmp_path}/a.bin 9 3", "SLOT 0 SNAPSHOT 5")
    talk.until(1, OVER)
    eventually(lambda: engine.stats()["saves"] > 0)  # it is on its way to the disk
    engine.close(flush=False)
    talk.until(0, DONE)
    talk.end()
    assert talk.frames.count((0, DONE)) == talk.frames.count((1, DONE)) == 1
    assert "kept=memory not_on_disk: it was cancelled" in talk.texts[0][-1]
    assert names(tmp_path) == []


def test_a_step_that_fails_meanwhile_is_said_in_the_reply(opened, busy_disk, tmp_path, monkeypatch):
    talk, engine = opened()
    talk.say(f"REQ 1 START {tmp_path}/a.bin 9 3", f"REQ 2 START {tmp_path}/a.bin 300 2")
    talk.until(1, OVER)
    talk.until(2, OVER)
    talk.say("SCHED_DRAIN", "SLOT 0 SNAPSHOT 5")
    eventually(lambda: engine.stats()["saves"] > 0)

    def fail(*_):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(ModelRunner, "launch", fail)
    talk.until(2, DONE)
    talk.until(0, DONE)
    monkeypatch.undo()
    assert "kept=memory not_on_disk: its state was lost" in "".join(talk.texts[0])
    busy_disk.release()
    talk.say(f"REQ 3 SLOT 3 {tmp_path}/a.bin 2")  # the daemon goes on
    talk.end()
    assert len(talk.tokens[3]) == 2
    assert talk.frames.count((1, DONE)) == talk.frames.count((2, DONE)) == 1


# -- thin ones -------------------------------------------------------------------------------------


def test_a_thin_snapshot_is_found_by_a_later_process(opened, tmp_path):
    talk, engine = opened()
    talk.say(f"REQ 1 START {tmp_path}/a.bin 9 3", "REQ 1 SNAPSHOT 0", "REQ 1 CONTINUE 3",
             "REQ 1 SNAPSHOT_THIN 1 128 155")  # fmt: skip
    talk.end()
    engine.close()
    longer = [*PROMPT, *talk.tokens[1][:6], 7]
    talk, engine = opened()
    talk.file("longer.bin", longer)
    talk.say(
        "REQ 3 LIST_SLOTS",
        f"REQ 4 RESTORE_CHAIN -1 1 {tmp_path}/longer.bin 2",
        f"REQ 2 RESTORE_CHAIN 0 1 {tmp_path}/longer.bin 2",
        "FREE_SNAPSHOT 1",
    )
    talk.end()
    assert talk.texts[3] == [
        "snapshots 2\nsnapshot=0 length=152\nsnapshot=1 length=155 thin=128..155"
    ]
    assert "positions 0 to 127 are in no snapshot" in talk.texts[4][0]
    assert "reused=155 from=disk" in talk.texts[2][-1]
    assert names(tmp_path) == ["snapshot-0"]


def test_the_bytes_of_a_range_are_those_of_a_cold_run(model, tmp_path):
    """Files of chunks and points: their names come from their tokens."""
    files = {}
    for name, prompt in (("warm", PROMPT), ("cold", [*PROMPT[:128], 7, 8, 9])):
        cache = DiskCache.open(tmp_path / name, salt_record(model, SLICE), 1 << 30)
        with Engine(model, LIMITS, disk=cache) as engine:
            talk = Talk(engine, tmp_path)
            talk.file(f"{name}.bin", prompt)
            talk.say(f"REQ 2 {tmp_path}/{name}.bin 1 snap=128:0")
            talk.until(2, DONE)
            if name == "warm":
                talk.say(f"REQ 1 START {tmp_path}/{name}.bin 9 3", "REQ 1 SNAPSHOT_THIN 1 64 128",
                         "FREE_SNAPSHOT 0")  # fmt: skip
            talk.end()
        point = cache.named("snapshot-1-from-64" if name == "warm" else "snapshot-0")
        folder = next((tmp_path / name).glob("*/points")).parent
        wanted = {f"{key:032x}-{pool}" for key, pool in point.chunks()} | {f"{point.key:032x}"}
        found = [path for path in folder.glob("[cp]*/*") if path.name in wanted]
        files[name] = {path.name: path.read_bytes() for path in found}
        assert files[name].keys() == wanted
    assert files["warm"] == files["cold"]


def test_a_number_has_one_snapshot_on_the_disk(opened, tmp_path):
    talk, _ = opened()
    talk.say(f"REQ 1 START {tmp_path}/a.bin 9 3", "REQ 1 SNAPSHOT 5",
             "REQ 1 SNAPSHOT_THIN 5 64 152", "REQ 1 SNAPSHOT_THIN 5 128 152")  # fmt: skip
    talk.until(1, DONE, count=3)
    assert names(tmp_path) == ["snapshot-5-from-128"]
    talk.end()


def test_another_model_is_refused_by_the_name_of_the_difference(opened, model, tmp_path):
    talk, engine = opened()
    talk.say(f"REQ 1 START {tmp_path}/a.bin 9 3", "REQ 1 SNAPSHOT_THIN 5 0 152")
    talk.end()
    engine.close()
    record = replace(salt_record(model, SLICE), slice_length=SLICE + 1)
    cache = DiskCache.open(tmp_path / "prefix", record, 1 << 30)
    with Engine(model, LIMITS, disk=cache) as other:
        talk = Talk(other, tmp_path)
        talk.say(f"REQ 2 RESTORE_CHAIN -1 5 {tmp_path}/a.bin 2")
        talk.end()
    assert "slice length (32 there, 33 here)" in talk.texts[2][0]


# -- kill -9 ---------------------------------------------------------------------------------------


class Daemon:
    """``kinfolk daemon`` with a disk, as a program."""

    def __init__(self, model, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kinfolk", "daemon", str(model), "--stream-tagged", "v2",
             "--cache-disk", "1", "--cache-dir", str(folder), "--no-warmup", "--ignore-eos",
             "--context", "512", "--slots", "2"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.frames, self.texts = FrameReader(Wire.TAGGED_V2), TextReader()

    def say(self, *lines):
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def reply(self, number):
        """The tokens and the texts of a request, up to its next reply."""
        tokens, texts = [], []
        while True:
            raw = os.read(self.process.stdout.fileno(), 12)
            assert raw, "the program ended"
            for frame in self.frames.feed(raw):
                if frame.tag == -2 and frame.request == number:
                    if frame.word == DONE:
                        return tokens, texts
                    tokens += [frame.word] if frame.word >= 0 else []
                elif frame.tag != -2 and (text := self.texts.feed(frame)) is not None:
                    texts.append(text)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


def test_a_snapshot_outlives_a_kill_right_after_its_reply(cases, tmp_path):
    np.array(PROMPT, "<i4").tofile(tmp_path / "a.bin")
    first = Daemon(cases / "qwen35.gguf", tmp_path / "cache")
    first.say(f"REQ 1 START {tmp_path}/a.bin 9 3", "REQ 1 SNAPSHOT 5")
    tokens, texts = first.reply(1)
    first.kill()
    assert texts == ["snapshot=5 length=152 kept=disk"]
    np.array([*PROMPT, *tokens, 7], "<i4").tofile(tmp_path / "longer.bin")
    second = Daemon(cases / "qwen35.gguf", tmp_path / "cache")
    second.say(f"REQ 2 RESTORE 5 {tmp_path}/longer.bin 4")
    restored, texts = second.reply(2)
    second.kill()
    assert len(restored) == 4
    assert "reused=152 from=disk" in texts[-1]

"""A chat goes on after a restart from what the disk has, and answers as if there had been none."""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOSPC
from queue import SimpleQueue

import host_scenes
import prefix_scenes
import pytest

from kinfolk.engine import disk_tier
from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.sched.events import Held
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import FinishReason, Request
from kinfolk.settings import load_settings
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_admin import PrefixFolder

NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
LARGE = 1 << 30
PATIENCE = 60.0
MESSAGE, ANSWER = 90, 6


@pytest.fixture(scope="module")
def model(registry, cases):
    def load(family="qwen35", checkpoints=4, gib=0.25, **more):
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 1, **more}
        settings = load_settings(checkpoints=checkpoints, cache_memory=gib, **options)
        return load_model(cases / f"{family}.gguf", settings, registry)

    return load


@pytest.fixture
def disk(tmp_path):
    """``disk(model)``: the cache of a new process on the one folder of the test."""

    def opened(model, limit=LARGE, **changed):
        record = replace(salt_record(model, prefix_scenes.SLICE), **changed)
        return DiskCache.open(tmp_path / "prefix", record, limit)

    return opened


def talk(loaded, chats, turns, cache=None, after=None):
    with host_scenes.opened(loaded, cache) as engine:
        said = host_scenes.talk(engine, chats, turns, MESSAGE, ANSWER, after=after)
        stats = engine.stats()
    return said, stats


def chats_of(loaded, text, count=1):
    return [host_scenes.Chat(n, text, loaded.info.vocabulary) for n in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_goes_on_after_a_restart_as_if_there_had_been_none(model, text, disk, family):
    loaded = model(family)
    (chat,) = chats = chats_of(loaded, text)
    whole, _ = talk(loaded, chats, 3)
    (chat,) = chats = chats_of(loaded, text)
    first, _ = talk(loaded, chats, 2, disk(loaded))
    second, stats = talk(loaded, chats, 1, disk(loaded))
    assert [said for said, _ in first + second] == [said for said, _ in whole]
    (_, usage), (_, other) = second[0], whole[2]
    assert usage.reused_from == "disk"
    assert usage.reused == other.reused
    assert usage.prompt - usage.reused <= MESSAGE + host_scenes.HEADER + 64
    assert stats["disk_fetches"] == 1
    assert stats["disk_fetched_tokens"] == usage.reused
    assert chat.turn == 3


@pytest.mark.parametrize("unparked", [False, True])
def test_a_parked_engine_leaves_its_chats_on_the_disk(model, text, disk, unparked):
    loaded = model(preempt=True)
    chats = chats_of(loaded, text, 2)
    with host_scenes.opened(loaded, disk(loaded)) as engine:
        host_scenes.talk(engine, chats, 1, MESSAGE, ANSWER)
        engine.park()
        if unparked:
            engine.unpark()
            said = host_scenes.talk(engine, chats, 1, MESSAGE, ANSWER)
            assert [usage.reused_from for _, usage in said] == ["host"] * 2
    said, stats = talk(loaded, chats, 1, disk(loaded))
    assert [usage.reused_from for _, usage in said] == ["disk"] * 2
    assert stats["disk_fetches"] == 2


def test_what_is_saved_while_held_requests_are_probed_reaches_the_disk(model, text, disk):
    """Its bytes come to host memory beside the step of the probe."""
    loaded = model("qwen35", checkpoints=1, slots=4)
    limits = SchedulerLimits(slots=4, context=256, vocabulary=loaded.info.vocabulary, slice=32)
    engine = Engine(loaded, limits, None, disk(loaded))
    pauses = SimpleQueue()
    for name, start in (("a", 0), ("b", 40)):
        prompt = tuple(token % loaded.info.vocabulary for token in text[start : start + 100])
        engine.submit(Request(name, prompt, 20, grant=4), print, pauses.put)
    assert [type(pauses.get(timeout=60)) for _ in "ab"] == [Held, Held]
    assert engine.keep("a")
    # Both wait for the same step to end; that of "a" leaves the device for it.
    resting, begun = threading.Event(), threading.Event()

    def rest():
        begun.set()
        resting.wait(60)

    with ThreadPoolExecutor(3) as pool:
        between = pool.submit(engine.between_steps, rest)
        assert begun.wait(60)
        kept = pool.submit(engine.keep, "b")
        while not engine.pending_calls:
            time.sleep(0.001)
        probed = pool.submit(engine.probe, ["a"])
        time.sleep(0.05)
        resting.set()
        assert kept.result(60)
        ((together, alone),) = probed.result(60)
        between.result(60)
    assert together == alone
    engine.close()
    assert engine.stats()["disk_spills"] > 0


def test_what_the_host_held_is_on_the_disk_too(model, text, disk):
    loaded = model(checkpoints=2)
    chats = chats_of(loaded, text, 6)
    talk(loaded, chats, 1, disk(loaded))
    said, stats = talk(loaded, chats, 1, disk(loaded))
    assert [usage.reused_from for _, usage in said] == ["disk"] * 6
    assert stats["disk_fetches"] == 6


def test_nothing_is_read_that_memory_has(model, text, disk):
    loaded = model()
    said, stats = talk(loaded, chats_of(loaded, text), 3, disk(loaded))
    assert [usage.reused_from for _, usage in said] == [None, "device", "device"]
    assert stats["disk_fetches"] == 0


@pytest.mark.parametrize(
    "changed",
    [{"model_hash": "0" * 32}, {"layout_hash": "0" * 16}, {"slice_length": 8}, {"version": "0"}],
)
def test_what_belongs_to_something_else_is_not_used(model, text, disk, changed):
    loaded = model()
    chats = chats_of(loaded, text)
    talk(loaded, chats, 1, disk(loaded, **changed))
    said, _ = talk(loaded, chats, 1, disk(loaded))
    assert [usage.reused for _, usage in said] == [0]


def test_damaged_files_give_a_cold_run_and_one_warning(model, text, disk, tmp_path, caplog):
    loaded = model()
    chats = chats_of(loaded, text)
    talk(loaded, chats, 1, disk(loaded))
    for path in tmp_path.rglob("chunks/*"):
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        said, stats = talk(loaded, chats, 1, disk(loaded))
    assert [usage.reused for _, usage in said] == [0]
    assert stats["disk_drops_lost"] == 1
    assert len([each for each in caplog.records if "is dropped" in each.getMessage()]) == 1
    cold, _ = talk(loaded, chats_of(loaded, text), 2, after=None)
    prefix_scenes.assert_near(said[0][0], cold[1][0], NEAR, 0)


def test_a_host_that_is_smaller_than_a_point_starts_cold(model, text, disk):
    large, small = model(), model(gib=0.0001)
    chats = chats_of(large, text)
    talk(large, chats, 2, disk(large))
    said, stats = talk(small, chats, 1, disk(small))
    assert [usage.reused for _, usage in said] == [0]
    assert stats["disk_fetches"] == 0


def test_a_small_host_is_filled_again_and_again(model, text, disk):
    loaded = model(gib=0.004, checkpoints=2)
    chats = chats_of(loaded, text, 8)
    talk(loaded, chats, 1, disk(loaded))
    said, stats = talk(loaded, chats, 1, disk(loaded))
    assert {usage.reused_from for _, usage in said} == {"disk"}
    assert stats["host_bytes"] <= loaded.limits.host_bytes


def test_a_limit_without_room_is_told_once_and_nothing_else_changes(model, text, disk, caplog):
    loaded = model()
    with caplog.at_level(logging.WARNING):
        said, stats = talk(loaded, chats_of(loaded, text, 2), 2, disk(loaded, limit=1000))
    assert len(caplog.records) == 1
    assert "is not kept" in caplog.text
    assert stats["disk_points"] == stats["disk_spills"] == 0
    plain, _ = talk(loaded, chats_of(loaded, text, 2), 2)
    assert [each for each, _ in said] == [each for each, _ in plain]


# -- what can go wrong ----------------------------------------------------------------------------


def test_a_full_disk_is_told_once_and_chats_go_on(model, text, disk, caplog, monkeypatch):
    monkeypatch.setattr(disk_tier, "IDLE_SECONDS", 0.0)
    loaded = model()

    def full(*_):
        raise OSError(ENOSPC, "No space left on device")

    cache = disk(loaded)
    monkeypatch.setattr(os, "pwrite", full)
    chats = chats_of(loaded, text, 2)
    with host_scenes.opened(loaded, cache) as engine, caplog.at_level(logging.WARNING):
        said = host_scenes.talk(engine, chats, 2, MESSAGE, ANSWER)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert engine.stats()["disk_spills"] == 0
    assert sum(value for name, value in engine.stats().items() if "disk_drops" in name) > 0
    plain, _ = talk(loaded, chats_of(loaded, text, 2), 2)
    assert [each for each, _ in said] == [each for each, _ in plain]


class HeldDisk:
    """Holds the disk's thread before each read, or each file that is written, until it is let
    go."""

    def __init__(self, monkeypatch, what):
        self.reached, self.free = threading.Event(), threading.Event()
        self.free.set()
        owner, name = {"read": (DiskCache, "read"), "write": (os, "replace")}[what]
        plain = getattr(owner, name)

        def held(*arguments):
            if not self.free.is_set():
                self.reached.set()
                assert self.free.wait(PATIENCE)
            return plain(*arguments)

        monkeypatch.setattr(owner, name, held)

    def hold(self):
        self.free.clear()


@pytest.fixture
def slow(monkeypatch):
    """``slow("read")`` or ``slow("write")``: a disk that can be held."""
    made = []

    def make(what):
        made.append(HeldDisk(monkeypatch, what))
        return made[-1]

    yield make
    for each in made:
        each.free.set()


@pytest.fixture
def stored(model, text, disk):
    """A model of two slots, and a chat whose first turn is on the disk."""
    loaded = model(slots=2)
    (chat,) = chats = chats_of(loaded, text)
    talk(loaded, chats, 1, disk(loaded))
    return loaded, chat


def two_slots(loaded, cache):
    limits = replace(prefix_scenes.limits_of(loaded), slots=2)
    return Engine(loaded, limits, disk=cache)


def test_others_run_while_the_disk_is_read(stored, text, disk, slow):
    loaded, chat = stored
    reads = slow("read")
    with two_slots(loaded, disk(loaded)) as engine:
        reads.hold()
        waiting = engine.submit(chat.next(MESSAGE, ANSWER))
        assert reads.reached.wait(PATIENCE)
        for number in range(3):
            *_, end = engine.submit(Request(f"other {number}", tuple(text[:50]), 3))
            assert end.error is None
        assert engine.stats()["waiting"] == 1
        reads.free.set()
        *_, end = waiting
    assert end.usage.reused_from == "disk"
    engine.check_integrity()


def test_two_requests_of_one_chat_wait_for_one_read(stored, disk, slow):
    loaded, chat = stored
    reads = slow("read")
    with two_slots(loaded, disk(loaded)) as engine:
        reads.hold()
        request = chat.next(MESSAGE, ANSWER)
        tickets = [engine.submit(replace(request, id=name)) for name in ("a", "b")]
        assert reads.reached.wait(PATIENCE)
        reads.free.set()
        ends = [list(ticket)[-1] for ticket in tickets]
        assert engine.stats()["disk_fetches"] == 1
    assert [end.usage.reused_from for end in ends] == ["disk", "disk"]


def test_a_request_that_waits_for_the_disk_can_be_cancelled(stored, disk, slow):
    loaded, chat = stored
    reads = slow("read")
    with two_slots(loaded, disk(loaded)) as engine:
        reads.hold()
        request = chat.next(MESSAGE, ANSWER)
        waiting = engine.submit(request)
        assert reads.reached.wait(PATIENCE)
        waiting.cancel()
        *_, end = waiting
        assert end.reason is FinishReason.CANCELLED
        reads.free.set()
        *_, end = engine.submit(replace(request, id="again"))
        assert end.usage.reused > 0
    engine.check_integrity()


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_step_that_fails_meanwhile_loses_nothing_on_the_disk(
    stored, text, disk, slow, what, monkeypatch
):
    monkeypatch.setattr(disk_tier, "IDLE_SECONDS", 0.0)
    loaded, chat = stored
    broken, plain = threading.Event(), copy.copy(loaded.model)

    def forward(batch, state):
        if broken.is_set():
            raise RuntimeError("a cable was pulled")
        return loaded.model.forward(batch, state)

    plain.forward = forward
    held = slow(what)
    with two_slots(replace(loaded, model=plain), disk(loaded)) as engine:
        if what == "write":
            other = chats_of(loaded, text, 9)[8]
            for each in host_scenes.talk(engine, [other], 1, MESSAGE, ANSWER):
                assert each[1].reused == 0
        held.hold()
        request = chat.next(MESSAGE, ANSWER)
        ticket = engine.submit(request) if what == "read" else None
        assert held.reached.wait(PATIENCE)
        broken.set()
        failed = engine.submit(Request("fails", tuple(text[:30]), 2))
        threading.Timer(0.2, held.free.set).start()
        *_, end = failed
        assert "a cable was pulled" in end.error
        broken.clear()
        if ticket is not None:
            *_, end = ticket
            assert end.error is None or "a cable was pulled" in end.error
        *_, end = engine.submit(replace(request, id="again"))
        assert end.error is None
        assert end.usage.reused_from in ("disk", "device")
    engine.check_integrity()


def test_an_interrupt_while_the_engine_closes_ends_the_writing(
    model, text, disk, slow, tmp_path, monkeypatch
):
    loaded = model()
    writes = slow("write")
    engine = Engine(loaded, prefix_scenes.limits_of(loaded), disk=disk(loaded))
    host_scenes.talk(engine, chats_of(loaded, text, 3), 1, MESSAGE, ANSWER)
    writes.hold()
    join = threading.Thread.join

    def interrupted(self, timeout=None):
        assert writes.reached.wait(PATIENCE)
        monkeypatch.setattr(threading.Thread, "join", join)
        threading.Timer(0.1, writes.free.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    assert engine.closed
    engine.check_integrity()
    folder = PrefixFolder(tmp_path / "prefix")
    assert folder.check(lambda *_: None) == []
    assert sum(len(one.points) for one in folder.models()) < 6


def test_what_is_used_in_memory_counts_as_a_hit_of_its_point(
    model, text, disk, tmp_path, monkeypatch
):
    monkeypatch.setattr(disk_tier, "IDLE_SECONDS", 0.0)
    loaded = model()
    chats = chats_of(loaded, text)
    with host_scenes.opened(loaded, disk(loaded)) as engine:
        host_scenes.talk(engine, chats, 1, MESSAGE, ANSWER)
        deadline = time.monotonic() + PATIENCE
        while engine.stats()["disk_points"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        ((_, usage),) = host_scenes.talk(engine, chats, 1, MESSAGE, ANSWER)
    assert usage.reused_from == "device"
    found = [one for each in PrefixFolder(tmp_path / "prefix").models() for one in each.points]
    assert {one.info.length: one.hits.count for one in found}[usage.reused] == 1


def test_closing_can_be_cut_short_and_leaves_nothing_damaged(model, text, disk, slow, tmp_path):
    loaded = model()
    writes = slow("write")
    engine = Engine(loaded, prefix_scenes.limits_of(loaded), disk=disk(loaded))
    host_scenes.talk(engine, chats_of(loaded, text, 2), 1, MESSAGE, ANSWER)
    writes.hold()
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert writes.reached.wait(PATIENCE)
    hurried = threading.Thread(target=lambda: engine.close(flush=False))
    hurried.start()
    writes.free.set()
    hurried.join(PATIENCE)
    closing.join(PATIENCE)
    assert engine.closed
    engine.check_integrity()
    assert PrefixFolder(tmp_path / "prefix").check(lambda *_: None) == []

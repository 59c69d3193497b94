"""Snapshots of the daemon that other processes and later ones go on from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from talk import Talk

from kinfolk.daemon.frames import Wire
from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.engine import Engine
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.state.disk import DiskCache

SLICE = 32
PROMPT = [number * 13 % 400 for number in range(150)]


@pytest.fixture
def model(load):
    return load(cache_memory=0.1)


@pytest.fixture
def process(model, tmp_path):
    """``process(lines)``: what a new process with the disk says, and its counters."""

    def talk(*lines, disk=True, **changed):
        cache = None
        if disk:
            record = replace(salt_record(model, SLICE), **changed)
            cache = DiskCache.open(tmp_path / "prefix", record, 1 << 30)
        limits = SchedulerLimits(slots=8, context=512, step_tokens=128, slice=SLICE)
        with Engine(model, limits, disk=cache) as engine:
            talk = Talk(engine, tmp_path, Wire.TAGGED)
            talk.file("a.bin", PROMPT)
            talk.say(*lines)
            talk.end()
            stats = engine.stats()
        engine.check_integrity()
        return talk, stats

    return talk


def longer(talk, tokens):
    talk.file("longer.bin", [*PROMPT, *tokens, 7])


def test_a_snapshot_of_a_held_request_is_restored_by_a_later_process(process, tmp_path):
    first, _ = process(f"REQ 1 START {tmp_path}/a.bin 9 3", "REQ 1 SNAPSHOT 5")
    assert "snapshot=5 length=152" in "".join(first.said)
    longer(first, first.tokens[1][:3])
    line = f"REQ 2 RESTORE 5 {tmp_path}/longer.bin 4"
    cold, nothing = process(line.replace("RESTORE 5 ", ""), disk=False)
    second, stats = process("LIST_SLOTS", line)
    assert "snapshot=5 length=152" in "".join(second.said)
    assert second.tokens[2] == cold.tokens[2]
    assert stats["disk_fetches"] == 1
    assert stats["disk_fetched_tokens"] == 152
    assert stats["prefill_rows"] < nothing["prefill_rows"] - 100


def test_a_snapshot_inside_of_a_prompt_is_on_the_disk_too(process, tmp_path):
    process(f"REQ 1 {tmp_path}/a.bin 2 snap=100:3")
    _, stats = process(f"REQ 2 RESTORE 3 {tmp_path}/a.bin 2")
    assert stats["disk_fetched_tokens"] == 100


def test_another_model_is_refused_by_the_name_of_the_difference(process, tmp_path):
    process(f"REQ 1 {tmp_path}/a.bin 2 snap=100:3")
    line = f"REQ 2 RESTORE 3 {tmp_path}/a.bin 2"
    other, _ = process(line, slice_length=SLICE + 1)
    assert "slice length (32 there, 33 here)" in "".join(other.said)
    assert 2 not in other.tokens
    _, stats = process(line)
    assert stats["disk_fetches"] == 1


def test_a_snapshot_that_is_freed_is_free_in_every_process(process, tmp_path):
    process(f"REQ 1 {tmp_path}/a.bin 2 snap=100:3")
    process("FREE_SNAPSHOT 3")
    last, _ = process(f"REQ 2 RESTORE 3 {tmp_path}/a.bin 2", "FREE_SNAPSHOT 3")
    assert "".join(last.said).count("there is no snapshot 3") == 2

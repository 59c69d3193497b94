"""A chat goes on after a restart from what the disk has, and answers as if there had been none."""

from __future__ import annotations

import logging
from dataclasses import replace

import host_scenes
import prefix_scenes
import pytest

from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.loading import load_model
from kinfolk.settings import load_settings
from kinfolk.state.disk import DiskCache

NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
LARGE = 1 << 30
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


def test_a_full_disk_is_told_once_and_nothing_else_changes(model, text, disk, caplog):
    loaded = model()
    with caplog.at_level(logging.WARNING):
        said, _ = talk(loaded, chats_of(loaded, text, 2), 2, disk(loaded, limit=1000))
    assert len(caplog.records) == 1
    assert "is not kept" in caplog.text
    plain, _ = talk(loaded, chats_of(loaded, text, 2), 2)
    assert [each for each, _ in said] == [each for each, _ in plain]

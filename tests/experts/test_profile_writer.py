"""A profile is saved beside the steps: when, and what happens if the disk is slow or full."""

from __future__ import annotations

import os
import threading

import pytest

from kinfolk.experts.profile import SAVE_SECONDS, ExpertProfile
from kinfolk.experts.profile_writer import ProfileWriter

LAYERS, COUNTS = (3, 0, 2), ((5, 0, 7), (), (1, 11))


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def profile(tmp_path, clock):
    return ExpertProfile(tmp_path / "p.json", "model-a", LAYERS, lambda: clock[0])


def saved(profile):
    return ExpertProfile.load(profile.path, "model-a", LAYERS).tokens


@pytest.fixture
def disk(monkeypatch):
    """Answers when the event is set."""
    ready, real = threading.Event(), os.fsync

    def slowly(descriptor):
        assert ready.wait(60)
        real(descriptor)

    monkeypatch.setattr("kinfolk.experts.profile.os.fsync", slowly)
    return ready


def test_it_is_saved_after_ten_minutes_and_at_the_end(profile, clock, disk):
    writer = ProfileWriter(profile)
    disk.set()
    profile.add(COUNTS, 1)
    clock[0] = SAVE_SECONDS - 1
    writer.save_if_due()
    assert not profile.due
    clock[0] = SAVE_SECONDS
    assert profile.due
    writer.save_if_due()
    assert not profile.due
    writer.finish()
    assert saved(profile) == 1


def test_a_slow_disk_has_one_file_at_a_time_to_write(profile, clock, disk):
    writer, threads = ProfileWriter(profile), threading.active_count()
    for _ in range(3):
        clock[0] += SAVE_SECONDS
        profile.add(COUNTS, 1)
        writer.save_if_due()
    assert threading.active_count() == threads + 1
    assert not profile.path.exists()
    disk.set()
    writer.finish()
    assert saved(profile) == 3
    assert list(profile.path.parent.iterdir()) == [profile.path]


def test_a_file_that_cannot_be_written_is_logged_and_tried_again(profile, clock, caplog, tmp_path):
    profile.path = tmp_path / "missing" / "p.json"
    writer = ProfileWriter(profile)
    profile.add(COUNTS, 1)
    clock[0] = SAVE_SECONDS
    writer.save_if_due()
    writer.finish()
    assert caplog.text.count("--expert-profile cannot be written") == 2
    profile.path.parent.mkdir()
    writer.finish()
    assert saved(profile) == 1


def test_a_thread_that_cannot_be_started_costs_no_counts(profile, clock, caplog, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    writer = ProfileWriter(profile)
    profile.add(COUNTS, 1)
    clock[0] = SAVE_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        writer.save_if_due()
    assert "can't start new thread" in caplog.text
    writer.finish()
    assert saved(profile) == 1

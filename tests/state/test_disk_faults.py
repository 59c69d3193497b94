"""Faults of the disk tier: mutated files, killed writers, a full disk, several processes."""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import shutil
import subprocess
import sys

import pytest
from disk_scenes import ToyDisk, files, nbytes, text


def few_or(most, few):
    """A test's count: few of them, or in the tier of minutes as many as are asked for."""
    return [few, pytest.param(most, marks=pytest.mark.long)]


@pytest.fixture
def toy(tmp_path):
    return ToyDisk(tmp_path / "prefix")


@pytest.fixture
def program(repo, tmp_path):
    """``program(name, ...)`` starts a program of tests/support."""

    def start(name, *arguments):
        paths = os.pathsep.join([str(repo / "tests/support"), *filter(None, sys.path)])
        return subprocess.Popen(
            [sys.executable, str(repo / "tests/support" / name), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def answer(process):
    """The numbers that a program prints."""
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert err == ""
    return [int(word) for word in out.split()]


# -- mutated files --------------------------------------------------------------------------------


def mutated(content, dice):
    """The bytes with a bit flipped, a piece cut out, put in, zeroed or moved, or cut off."""
    changed = bytearray(content)
    # Half of all mutations hit the header, which is a small part of the file.
    end = min(len(content), 400) if dice.random() < 0.5 else len(content)
    place, size = dice.randrange(end), dice.randrange(1, 40)
    kind = dice.randrange(6)
    if kind == 0:
        changed[place] ^= 1 << dice.randrange(8)
    elif kind == 1:
        changed[place : place + size] = dice.randbytes(size)
    elif kind == 2:
        del changed[place : place + size]
    elif kind == 3:
        changed[place:place] = dice.randbytes(size)
    elif kind == 4:
        changed[place : place + size] = bytes(len(changed[place : place + size]))
    else:
        del changed[place:]
    return bytes(changed)


@pytest.mark.parametrize("mutations", few_or(1000, 60))
def test_a_mutated_file_is_dropped_with_one_warning_or_its_bytes_are_right(
    tmp_path, caplog, mutations
):
    """Every file of a folder in turn: it is read as it was written, or dropped; the rest stays."""
    caplog.set_level(logging.WARNING, "kinfolk.state")
    original = ToyDisk(tmp_path / "original")
    for length, name in ((150, ""), (200, "mine"), (64, "")):
        original.store(text(length), name=name)
    original.store(text(100, seed=1))
    victims = [path for path in files(original.folder) if path.name not in ("salt.json", "lock")]
    dice = random.Random(7)
    dropped = 0
    for number in range(mutations):
        folder = tmp_path / f"copy{number}"
        shutil.copytree(original.folder, folder)
        victim = folder / victims[number % len(victims)].relative_to(original.folder)
        before = victim.read_bytes()
        victim.write_bytes(mutated(before, dice))
        same = victim.read_bytes() == before or victim.parent.name == "hits"
        caplog.clear()
        toy = ToyDisk(folder)
        asked = [(200, 0), (150, 0), (64, 0), (100, 1)]
        lengths = [toy.restores(text(*one)) for one in asked]
        warned = len(caplog.records)
        # A chunk of a window that no longest point needs is not read; nor is a point behind it.
        assert warned == (not same) or (warned == 0 and lengths == [200, 150, 64, 100])
        assert victim.exists() == (not warned)
        again = [toy.restores(text(*one)) for one in asked]
        assert len(caplog.records) == warned, "a second warning"
        for (length, seed), found in zip(asked, again, strict=True):
            assert found in ([100, 0] if seed else [n for n in (200, 150, 64, 0) if n <= length])
        dropped += warned
        shutil.rmtree(folder)
    assert dropped > mutations // 2


def test_a_file_under_the_name_of_another_is_dropped(toy, caplog):
    """Whole files in wrong places, each with right checksums."""
    for seed in range(2):
        toy.store(text(200, seed))
    other = ToyDisk(toy.folder.parent / "other", block_bytes=(3000, 3000))
    other.store(text(200))
    salt = next(path for path in toy.folder.iterdir() if path.is_dir())
    for part, count in (("chunks", 8), ("points", 2)):
        paths = files(salt / part)
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
            path.write_bytes(content)
        assert len(paths) >= count // 2
    caplog.clear()
    cache = toy.reopened()
    assert [toy.restores(text(200, seed), cache) for seed in range(2)] == [0, 0]
    assert len(caplog.records) == 2


def test_a_salt_that_cannot_be_read_is_written_again(toy):
    toy.store(text(100))
    (record,) = (path for path in files(toy.folder) if path.name == "salt.json")
    record.write_text("{")
    assert toy.restores(text(100), toy.reopened()) == 100
    assert toy.cache.record.to_json() == record.read_text()


# -- killed writers -------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", few_or(100, 10))
def test_a_killed_writer_leaves_whole_entries_and_all_that_it_reported(program, tmp_path, kills):
    reported, unfinished = answer(program("disk_killed.py", tmp_path / "prefix", kills, 3))
    assert reported >= kills // 5
    assert unfinished > 0 or kills < 100, "no writer was killed while it wrote a file"


# -- a full disk, missing rights ------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch):
    """``full(n)``: no file gets more than n bytes more in all; ``full(None)``: any again."""
    left, write = [None], os.pwrite

    def limited(file, data, position):
        if left[0] is not None:
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = memoryview(data)[: left[0]]
            left[0] -= len(data)
        return write(file, data, position)

    monkeypatch.setattr(os, "pwrite", limited)
    return lambda count: left.__setitem__(0, count)


@pytest.mark.parametrize("room", [0, 10, 3000, 9000, 14_000, 17_000])
def test_on_a_full_disk_the_entry_is_dropped_with_one_warning(toy, full, caplog, monkeypatch, room):
    toy.store(text(100, seed=1))
    toy.store(text(100, seed=2))
    caplog.clear()
    full(room + 8)
    for _ in range(2):
        report = toy.store(text(250))
        assert report.outcome == "dropped"
        assert os.strerror(errno.ENOSPC) in report.reason
        full(room + 8)
    assert len(caplog.records) == 1
    assert toy.restores(text(250)) == 0
    left = [path for path in files(toy.folder) if path.name.endswith(".tmp")]
    assert left == []
    full(None)
    assert toy.store(text(250)).outcome == "stored"
    assert toy.restores(text(250), toy.reopened()) == 250
    full(8)  # the counter in the lock
    toy.store(text(300))
    assert len(caplog.records) == 1
    full(8)
    monkeypatch.setattr("kinfolk.state.disk.FULL_SECONDS", -1.0)
    toy.store(text(300))
    assert len(caplog.records) == 2, "a disk that is full much later is told again"


def test_after_a_full_disk_the_least_valuable_points_make_room(toy, full):
    for seed in range(1, 5):
        toy.store(text(250, seed))
    before = nbytes(toy.folder)
    full(100)
    toy.store(text(250))
    full(None)
    assert before - nbytes(toy.folder) >= 15_000
    assert toy.store(text(250)).outcome == "stored"
    assert sum(toy.restores(text(250, seed)) == 250 for seed in range(1, 5)) in (2, 3)


def test_a_disk_that_stays_full_is_not_tried_at_every_write(toy, monkeypatch, caplog):
    """The disk has room for 100 kB of ours, which is below the limit."""
    write = os.pwrite

    def limited(file, data, position):
        if nbytes(toy.folder) + len(data) > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, position)

    monkeypatch.setattr(os, "pwrite", limited)
    outcomes = [toy.store(text(250, seed)).outcome for seed in range(12)]
    assert outcomes.count("dropped") == 1
    assert len(caplog.records) == 1
    assert toy.restores(text(250, 11)) == 250


def test_a_file_beyond_the_size_limit_of_the_process_is_a_full_disk(toy, caplog):
    """A real refusal of the system, not a made-up one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        report = toy.store(text(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert report.outcome == "dropped"
    assert os.strerror(errno.EFBIG) in report.reason
    assert len(caplog.records) == 1
    assert toy.store(text(100)).outcome == "stored"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_without_permission_one_warning_and_no_more_writes(toy, monkeypatch, caplog, number):
    toy.store(text(100))
    caplog.clear()
    opened, calls = os.open, []

    def refused(path, flags, *rest, **others):
        if flags & os.O_CREAT:
            calls.append(path)
            raise OSError(number, os.strerror(number))
        return opened(path, flags, *rest, **others)

    monkeypatch.setattr(os, "open", refused)
    for seed in range(3):
        assert toy.store(text(100, seed + 1)).outcome == "dropped"
    assert len(calls) == 1
    (record,) = caplog.records
    assert os.strerror(number) in record.getMessage()
    assert os.strerror(number) in toy.cache.off
    assert toy.restores(text(100)) == 100


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    toy = ToyDisk(tmp_path / "file" / "prefix")
    assert toy.store(text(100)).outcome == "dropped"
    assert toy.restores(text(100)) == 0
    assert len(caplog.records) == 1


def test_another_error_of_the_disk_drops_the_entry_only(toy, monkeypatch, caplog):
    def broken(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        assert toy.store(text(100)).outcome == "dropped"
    assert len(caplog.records) == 1
    assert [path.name for path in files(toy.folder)] == ["salt.json", "lock"]
    assert toy.store(text(100)).outcome == "stored"


# -- several processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", few_or(20.0, 1.0))
def test_processes_share_a_folder_and_the_limit_holds(program, tmp_path, seconds):
    limit = 150_000
    running = [
        program("disk_shared.py", tmp_path / "prefix", limit, seconds, seed) for seed in range(2)
    ]
    counts = [answer(process) for process in running]
    assert min(stored for stored, _, _ in counts) > 0
    assert sum(read for _, read, _ in counts) > 0
    assert nbytes(tmp_path / "prefix") <= limit
    toy = ToyDisk(tmp_path / "prefix", limit=limit)
    assert toy.cache.points()
    for point in toy.cache.points():
        which = next(n for n in range(4) if toy.found(text(point.length, n)) == point)
        assert toy.restores(text(point.length, which)) == point.length

"""Files of the disk tier that cannot be read for a moment, that others remove, or that are odd."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest
from disk_scenes import ToyDisk, files, nbytes, text

from kinfolk.errors import SettingsError
from kinfolk.state import disk_folder
from kinfolk.state import disk_format as fmt
from kinfolk.state.disk_admin import Damage, PrefixFolder
from kinfolk.state.disk_files import write_entry

LONG = text(640)


@pytest.fixture
def toy(tmp_path):
    return ToyDisk(tmp_path / "prefix")


def bad_sector(monkeypatch, bad):
    """From now on the file ``bad`` cannot be opened."""
    usual = os.open

    def broken(path, *rest, **more):
        if Path(os.fspath(path)) == bad:
            raise OSError(errno.EIO, "Input/output error")
        return usual(path, *rest, **more)

    monkeypatch.setattr(os, "open", broken)


def restores(toy, tokens=LONG):
    """What another process restores."""
    return toy.restores(tokens, toy.reopened())


# -- errors that pass -----------------------------------------------------------------------------


def test_too_many_open_files_cost_a_read_and_nothing_of_a_snapshot(toy):
    toy.store(LONG, name="snapshot-1")
    request = toy.request(toy.found(LONG), LONG)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 40 + max(map(int, os.listdir("/proc/self/fd")))
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        os.close(held.pop())  # the point's own file can be opened, its chunks cannot
        assert not toy.cache.read(request)
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert toy.cache.named("snapshot-1") is not None
    toy.cache.limit = nbytes(toy.folder) + 30_000
    for seed in (1, 2, 3):
        toy.store(text(320, seed))
        assert nbytes(toy.folder) <= toy.cache.limit
    assert restores(toy) == len(LONG)


@pytest.mark.parametrize("part", ["points", "names", "chunks"])
@pytest.mark.parametrize("folder", [False, True])
def test_a_scan_that_cannot_open_something_removes_nothing(toy, monkeypatch, part, folder):
    toy.store(LONG, name="snapshot-1")
    toy.reopened().refresh()  # so that the next writer reads the folder again
    fresh, failing = ToyDisk(toy.folder), [True]
    there, room = set(files(toy.folder)), nbytes(toy.folder) + 1000

    def fails(path):
        path = Path(os.fspath(path))
        return failing[0] and part == (path.name if folder else path.parent.name)

    for module, name in ((os, "scandir"), (os, "open")):
        usual = getattr(module, name)

        def call(path, *rest, usual=usual, name=name, **more):
            if fails(path) and (name == "scandir") == folder:
                raise OSError(errno.EMFILE, "Too many open files")
            return usual(path, *rest, **more)

        monkeypatch.setattr(module, name, call)
    usual_text = Path.read_text

    def read_text(path, *rest, **more):
        if fails(path) and not folder:
            raise OSError(errno.EIO, "Input/output error")
        return usual_text(path, *rest, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    fresh.cache.refresh()
    fresh.cache._index.make_room(room, 2000)
    failing[0] = False
    assert there <= set(files(toy.folder))
    fresh.cache.refresh()
    assert fresh.cache.named("snapshot-1") is not None
    assert restores(toy) == len(LONG)


def test_a_bad_sector_is_read_once_and_written_anew(toy, monkeypatch):
    toy.store(LONG, name="snapshot-1")
    _, chain = toy.hashed(LONG)
    bad = toy.cache._folder.chunk(chain[2], 0)
    bad_sector(monkeypatch, bad)
    assert toy.restores(LONG) == 0
    monkeypatch.undo()
    assert toy.found(LONG) is None, "it is not tried at every request"
    assert bad.exists()
    assert toy.store(LONG, name="snapshot-1").outcome == "stored"
    assert toy.restores(LONG) == restores(toy) == len(LONG)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_write_that_fails_leaves_the_chunks_of_others(toy, monkeypatch, failing):
    """Also those that were to be written anew."""
    toy.store(LONG, name="snapshot-1")
    _, chain = toy.hashed(LONG)
    bad = toy.cache._folder.chunk(chain[2], 0)
    bad_sector(monkeypatch, bad)
    assert toy.restores(LONG) == 0
    monkeypatch.undo()
    written = []

    def full(*arguments):
        written.append(arguments)
        if len(written) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_entry(*arguments)

    monkeypatch.setattr("kinfolk.state.disk.write_entry", full)
    assert toy.store(text(712), name="longer").outcome == "dropped"
    monkeypatch.undo()
    assert restores(toy) == len(LONG)


# -- others that write and remove -----------------------------------------------------------------


@pytest.mark.parametrize("after", ["chunks", "points"])
def test_verifying_beside_a_server_that_writes_finds_and_removes_nothing(toy, monkeypatch, after):
    toy.store(text(70, 9))
    usual, stored = disk_folder.SaltFolder._entries, []

    def entries(self, part, found):
        yield from usual(self, part, found)
        if part == after and not stored:
            stored.append(True)
            toy.store(LONG, name="snapshot-1")

    monkeypatch.setattr(disk_folder.SaltFolder, "_entries", entries)
    folder = PrefixFolder(toy.folder)
    assert folder.check(lambda done, total: None) == []
    folder.remove_damage(
        [
            Damage(toy.record.salt, path, "it looked damaged a moment ago")
            for path in files(toy.folder)
            if path.parent.name in ("points", "names")
        ]
    )
    assert restores(toy) == len(LONG)
    assert toy.reopened().named("snapshot-1") is not None


def test_verify_tells_of_files_that_cannot_be_read_and_leaves_them(toy, monkeypatch):
    toy.store(LONG)
    folder = PrefixFolder(toy.folder)
    (chunk, *_) = [path for path in files(toy.folder) if path.parent.name == "chunks"]
    bad_sector(monkeypatch, chunk)
    (damage,) = folder.check(lambda done, total: None)
    assert (damage.path, "Input/output error" in damage.reason) == (chunk, True)
    assert folder.remove_damage([damage]) == ([], 0)
    monkeypatch.undo()
    assert restores(toy) == len(LONG)


def reported(steps):
    """The report of a write, once it has ended."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("who", ["another process", "the same"])
def test_a_point_is_stored_only_if_all_its_chunks_are_there(toy, who):
    """One that reads a damaged chunk removes it, while another writes a point on it."""
    toy.store(text(200))
    writer = toy.cache
    reader = toy.reopened() if who == "another process" else writer
    _, chain = toy.hashed(LONG)
    path = writer._folder.chunk(chain[1], 0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    new = set(writer.missing(chain, toy.first(640)))
    steps = writer.storing(toy.entry(LONG, only=new, name="snapshot-1"))
    next(steps)
    assert toy.restores(text(200), reader) == 0
    while (report := reported(steps)) is None:
        pass
    assert (report.outcome, report.reason) == ("dropped", "chunks are no longer there")
    assert (0, 0) in report.missing
    assert toy.store(LONG, name="snapshot-1").outcome == "stored"
    assert restores(toy) == len(LONG)


def test_a_point_that_lost_a_chunk_is_written_again(toy):
    toy.store(LONG)
    _, chain = toy.hashed(LONG)
    toy.cache._folder.chunk(chain[3], 0).unlink()
    assert toy.store(LONG).outcome == "stored"
    assert restores(toy) == len(LONG)


def test_hits_of_points_that_others_removed_leave_no_files(toy):
    key = toy.store(text(70)).point.key
    toy.cache.touch(key)
    toy.reopened().remove(key)
    toy.cache.touch(key)
    assert not [path for path in files(toy.folder) if path.parent.name == "hits"]
    (toy.cache._folder.path / "hits" / ("a" * 32)).write_bytes(b"\n")
    folder = PrefixFolder(toy.folder)
    folder.remove_models([model.salt for model in folder.models()])
    assert PrefixFolder(toy.folder).models() == []


# -- odd files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "description",
    [
        b'{"first":["a","b"],"tensors":[]}',
        b'{"first":[null,{}],"tensors":[]}',
        b'{"first":[0.5,0],"tensors":[]}',
        b'{"first":[-1,0],"tensors":[]}',
        b'{"first":[0,0],"tensors":[[0,1,"f32",[1],0]]}',
        b'{"first":[0,0],"tensors":[],"paging":"\\ud800"}',
        b'{"first":' + b"[" * 20_000,
    ],
)
def test_a_point_of_odd_words_is_damaged_and_others_are_found(toy, monkeypatch, description):
    toy.store(text(100, 1))
    toy.store(text(70))
    info, (packed, chain) = toy.found(text(70)), toy.hashed(text(70))
    entry = toy.entry(text(70))
    monkeypatch.setattr(fmt.FileHeader, "_description", lambda self: description)
    header = fmt.point_header(
        toy.record.salt,
        info.key,
        info.parent,
        70,
        chain[1:],
        (0, 0),
        toy.tensors,
        2000,
        [3000, 500],
    )
    payload = {(1, 0): packed, (2, 0): entry.blocks[0, 1], (2, 1): entry.blocks[1, 1]}
    path = toy.cache._folder.point(info.key)
    path.unlink()
    write_entry(path, header, {**payload, (3, 0): entry.recurrent})
    monkeypatch.undo()
    other = toy.reopened()
    assert not other.off
    assert toy.restores(text(100, 1), other) == 100
    assert not path.exists()


@pytest.mark.parametrize("record", ['{"format": Infinity}', "[" * 200_000, "7"])
def test_an_odd_record_of_another_model_stops_nobody(toy, record):
    toy.store(text(70))
    folder = toy.folder / ("f" * 32)
    folder.mkdir()
    (folder / "salt.json").write_text(record)
    assert toy.restores(text(70), toy.reopened()) == 70


def test_a_pipe_in_place_of_a_chunk_is_damage(toy):
    toy.store(text(70))
    (chunk, *_) = [path for path in files(toy.folder) if path.parent.name == "chunks"]
    chunk.unlink()
    os.mkfifo(chunk)
    assert toy.restores(text(70)) == 0


def test_a_link_in_place_of_a_folder_is_written_to_by_nobody(tmp_path):
    toy = ToyDisk(tmp_path / "prefix")
    folder = toy.cache._folder.path
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert toy.store(text(70)).outcome == "dropped"
    assert not list((elsewhere / "points").iterdir())


def test_an_empty_word_names_nothing(toy):
    toy.store(text(70))
    folder = PrefixFolder(toy.folder)
    for find in (folder.find, folder.find_model):
        with pytest.raises(SettingsError, match="an empty word names no"):
            find("")

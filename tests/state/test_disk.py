"""The disk tier: what is stored is found again, in this process and in others."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
from dataclasses import replace

import pytest
from disk_scenes import RECORD, ToyDisk, files, nbytes, text
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.state.cache_salt import SaltRecord
from kinfolk.state.disk_files import TEMPORARY
from kinfolk.state.disk_folder import NAME_RULE_ON_DISK


@pytest.fixture
def toy(tmp_path):
    return ToyDisk(tmp_path / "prefix")


@pytest.fixture
def warnings(caplog):
    """``warnings()``: the messages since the last call."""
    caplog.set_level(logging.WARNING, "kinfolk.state")

    def take():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return take


# -- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 300])
def test_a_point_is_read_by_another_process_as_it_was_written(toy, length):
    assert toy.store(text(length)).outcome == "stored"
    assert toy.restores(text(length + 10), toy.reopened()) == length


def test_models_without_recurrent_state_and_with_one_pool_are_stored_too(tmp_path):
    toy = ToyDisk(tmp_path / "p", windows=(None,), block_bytes=(100,), recurrent_bytes=0)
    toy.store(text(130))
    assert toy.restores(text(131), toy.reopened()) == 130


@pytest.mark.parametrize("size", [1, 999, 1 << 20, 3_000_001])
def test_bytes_in_several_parts_are_written_and_read_as_in_one(tmp_path, size):
    """Parts end anywhere in a MiB, which has one checksum."""

    def cut(data):
        return [data[start : start + size] for start in range(0, len(data), size)]

    toy = ToyDisk(tmp_path / "p", windows=(None,), block_bytes=(9,), recurrent_bytes=4_000_000)
    if size == 1:
        toy.recurrent_bytes = 400
    entry = toy.entry(text(100))
    parts = {place: cut(block) for place, block in entry.blocks.items()}
    toy.cache.store(replace(entry, blocks=parts, recurrent=cut(entry.recurrent)))
    whole = toy.request(toy.found(text(100)), text(100))
    assert toy.cache.read(whole)
    assert toy.right(whole, text(100))
    again = toy.request(toy.found(text(100)), text(100))
    targets = {place: cut(block) for place, block in again.blocks.items()}
    assert toy.cache.read(replace(again, blocks=targets, recurrent=cut(again.recurrent)))
    assert toy.right(again, text(100))


lengths = st.integers(1, 200) | st.sampled_from([63, 64, 65, 127, 128, 129, 192])


@given(
    stored=st.lists(st.tuples(lengths, st.integers(0, 2)), min_size=1, max_size=5),
    asked=st.tuples(lengths, st.integers(0, 2)),
)
def test_the_longest_point_is_found(tmp_path_factory, stored, asked):
    toy = ToyDisk(tmp_path_factory.mktemp("disk") / "prefix")
    for length, seed in stored:
        assert toy.store(text(length, seed)).outcome in ("stored", "known")
    fitting = [length for length, seed in stored if seed == asked[1] and length <= asked[0]]
    for cache in (toy.cache, toy.reopened()):
        assert toy.restores(text(*asked), cache) == max(fitting, default=0)


def test_no_point_longer_than_allowed_is_found(toy):
    toy.store(text(100))
    packed, chain = toy.hashed(text(100))
    assert toy.cache.find(packed, chain, 99) is None
    assert toy.cache.find(packed, chain, 100).length == 100


def test_chunks_that_are_there_are_not_written_again(toy):
    toy.store(text(192))
    before = {path: path.stat().st_mtime_ns for path in files(toy.folder)}
    _, chain = toy.hashed(text(300))
    missing = toy.cache.missing(chain, toy.first(300))
    assert missing == [(0, 3), (1, 3)]
    assert toy.cache.store(toy.entry(text(300), only=set(missing))).outcome == "stored"
    chunks = [path for path in before if path.parent.name == "chunks"]
    assert all(path.stat().st_mtime_ns == before[path] for path in chunks)
    assert toy.restores(text(301), toy.reopened()) == 300


def test_a_windowed_pool_keeps_only_what_the_next_row_sees(toy):
    toy.store(text(320))
    pools = [path.name.partition("-")[2] for path in files(toy.folder) if "-" in path.name]
    assert (pools.count("0"), pools.count("1")) == (5, 2)


def test_a_point_whose_chunks_are_not_there_is_not_stored(toy, warnings):
    report = toy.cache.store(toy.entry(text(200), only={(0, 0), (0, 2), (1, 1), (1, 2)}))
    assert (report.outcome, report.nbytes, report.missing) == ("dropped", 0, ((0, 1),))
    assert warnings() == []
    assert toy.restores(text(200)) == 0


def test_a_point_is_stored_once(toy):
    first = toy.store(text(100))
    again = toy.store(text(100))
    assert (again.outcome, again.nbytes, again.point) == ("known", 0, first.point)


def test_tokens_of_another_root_are_a_mistake_of_the_caller(toy):
    entry = toy.entry(text(70))
    with pytest.raises(ValueError, match="another root"):
        toy.cache.store(replace(entry, chain=[0, *entry.chain[1:]]))


def test_the_last_chunk_must_be_given(toy):
    with pytest.raises(ValueError, match=r"the chunk that is not full, 1, is missing"):
        toy.cache.store(replace(toy.entry(text(70)), blocks={}))


def test_tokens_are_compared_before_a_point_is_believed(toy):
    toy.store(text(100))
    point = toy.found(text(100))
    others = [*text(99), 7]
    assert not toy.cache.read(toy.request(point, others))
    assert toy.restores(text(100)) == 100


def test_chunks_arrive_one_by_one_and_may_be_left_out(toy):
    toy.store(text(200))
    point, arrived = toy.found(text(200)), []
    request = toy.request(point, text(200))
    few = {place: target for place, target in request.blocks.items() if place[1] >= 2}
    request = replace(
        request, blocks=few, arrived=lambda pool, number: arrived.append((pool, number))
    )
    assert toy.cache.read(request)
    assert toy.right(request, text(200))
    assert sorted(arrived) == sorted(few)


def test_a_point_with_other_recurrent_state_is_not_read(toy):
    toy.store(text(100))
    request = toy.request(toy.found(text(100)), text(100))
    assert not toy.cache.read(replace(request, tensors=()))
    toy.store(text(100))
    assert not toy.cache.read(replace(request, recurrent=None))


def test_tokens_of_a_point_can_be_read_alone(toy):
    toy.store(text(100), name="here")
    assert toy.cache.tokens(toy.cache.named("here")) == toy.hashed(text(100))[0]


# -- damage ---------------------------------------------------------------------------------------


def test_a_damaged_chunk_is_dropped_with_one_warning_and_can_be_stored_again(toy, warnings):
    toy.store(text(200))
    victim = next(path for path in files(toy.folder) if path.name.endswith("-0"))
    damage(victim)
    assert toy.restores(text(200)) == 0
    (line,) = warnings()
    assert victim.name in line
    assert "checksum" in line
    assert toy.restores(text(200)) == 0
    assert not victim.exists()
    assert toy.store(text(200)).outcome == "stored"
    assert toy.restores(text(200), toy.reopened()) == 200
    assert warnings() == []


def test_a_damaged_point_is_dropped_when_the_folder_is_opened(toy, warnings):
    point = toy.store(text(100)).point
    toy.store(text(50, seed=1))
    path = toy.folder / f"{point.salt:032x}" / "points" / f"{point.key:032x}"
    path.write_bytes(path.read_bytes()[:-1])
    cache = toy.reopened()
    (line,) = warnings()
    assert "its header says" in line
    assert toy.restores(text(100), cache) == 0
    assert toy.restores(text(50, seed=1), cache) == 50
    assert not path.exists()


def test_a_point_that_another_process_removed_is_no_damage(toy, warnings):
    toy.store(text(100))
    other = toy.reopened()
    other.remove(toy.found(text(100)).key)
    assert toy.restores(text(100)) == 0
    assert toy.store(text(100)).outcome == "stored"
    assert toy.restores(text(100), other) == 0
    other.refresh()
    assert toy.restores(text(100), other) == 100
    assert warnings() == []


def test_a_folder_that_was_removed_is_made_again(toy):
    toy.store(text(100))
    for path in files(toy.folder):
        path.unlink()
    assert toy.restores(text(100)) == 0
    assert toy.store(text(100)).outcome == "stored"
    assert toy.restores(text(100), toy.reopened()) == 100


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_what_one_process_drops_is_written_again_by_another(toy, warnings):
    toy.store(text(200))
    other = toy.reopened()
    damage(next(path for path in files(toy.folder) if path.name.endswith("-0")))
    assert toy.restores(text(200), other) == 0
    assert len(warnings()) == 1
    assert toy.store(text(200)).outcome == "stored"
    assert toy.restores(text(200)) == 200


def test_opening_does_not_wait_for_a_long_write_of_another_process(toy, monkeypatch):
    monkeypatch.setattr("kinfolk.state.disk.OPEN_PATIENCE", 0.01)
    toy.store(text(100))
    with (toy.folder / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        cache = toy.reopened()
        assert cache.off == ""
        assert toy.restores(text(100), cache) == 100
    assert cache.store(toy.entry(text(150))).outcome == "stored"


def test_a_child_that_was_forked_during_a_write_does_not_keep_the_lock(toy):
    steps = toy.cache.storing(toy.entry(text(200)))
    next(steps)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        assert list(steps)
        assert toy.store(text(100)).outcome == "stored"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# -- folders --------------------------------------------------------------------------------------


def test_folders_and_files_are_for_the_user_alone(toy):
    toy.store(text(100), name="here")
    toy.restores(text(100))
    folders = [toy.folder, *(path for path in toy.folder.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files(toy.folder)} == {0o600}


def test_temporary_files_go_unless_their_writer_lives(toy):
    chunks = toy.folder / f"{RECORD.salt:032x}" / "chunks"
    left, live = (chunks / f"{'0' * 32}-0.{tag * 8}.tmp" for tag in "ab")
    left.write_bytes(b"half")
    live.write_bytes(b"half")
    assert TEMPORARY.fullmatch(left.name)
    with live.open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        toy.reopened()
        assert (left.exists(), live.exists()) == (False, True)
    toy.reopened()
    assert not live.exists()


@pytest.mark.parametrize("part", ["", "chunks", "points", "names", "hits"])
def test_temporary_files_go_from_every_folder(toy, part):
    left = toy.folder / f"{RECORD.salt:032x}" / part / "salt.json.0123abcd.tmp"
    left.write_bytes(b"half")
    toy.reopened()
    assert not left.exists()


def test_each_salt_has_a_folder_and_a_record(toy):
    other = ToyDisk(toy.folder, record=replace(RECORD, model_hash="c" * 32))
    toy.store(text(100))
    assert other.restores(text(100)) == 0
    records = {
        path.parent.name: SaltRecord.from_json(path.read_text())
        for path in files(toy.folder)
        if path.name == "salt.json"
    }
    assert records == {f"{one.record.salt:032x}": one.record for one in (toy, other)}


# -- names ----------------------------------------------------------------------------------------


def test_a_name_is_found_by_another_process(toy):
    toy.store(text(100), name="before-lunch")
    toy.store(text(200))
    assert toy.cache.give_name("later", toy.found(text(200)).key)
    cache = toy.reopened()
    lengths = {name: point.length for name, point in cache.names().items()}
    assert lengths == {"before-lunch": 100, "later": 200}
    assert cache.forget_name("later")
    assert not cache.forget_name("later")
    assert cache.named("later") is None


def test_a_name_can_be_given_to_another_point(toy):
    toy.store(text(100), name="here")
    toy.store(text(100))
    toy.store(text(120), name="here")
    assert toy.reopened().named("here").length == 120


def test_a_point_that_is_gone_gets_no_name(toy):
    assert not toy.cache.give_name("here", 17)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "x" * 101, "a.1234abcd.tmp", "a\n", "ä"])
def test_names_that_are_no_file_names_are_refused(toy, name):
    toy.store(text(10))
    with pytest.raises(ValueError, match="is no name") as refused:
        toy.cache.give_name(name, toy.found(text(10)).key)
    assert NAME_RULE_ON_DISK in str(refused.value)


def test_a_damaged_name_is_dropped_and_its_point_stays(toy, warnings):
    toy.store(text(100), name="here")
    (path,) = (path for path in files(toy.folder) if path.name == "here")
    damage(path)
    cache = toy.reopened()
    assert len(warnings()) == 1
    assert cache.named("here") is None
    assert toy.restores(text(100), cache) == 100


def test_a_name_of_another_model_is_refused_by_what_differs(toy):
    changes = {"slice_length": 2048, "activations": "f16 f16"}
    other = ToyDisk(toy.folder, record=replace(RECORD, model="the other", **changes))
    other.store(text(100), name="there")
    before = {path: path.read_bytes() for path in files(toy.folder) if path.name != "lock"}
    toy.cache.refresh()
    assert toy.cache.named("there") is None
    assert toy.cache.why_elsewhere("there") == (
        "'there' does not fit toy: it belongs to the other: slice length (2048 there, 512 here), "
        "activations (f16 f16 there, bf16 int8 here)"
    )
    assert toy.cache.why_elsewhere("nowhere") == "there is no 'nowhere'; names of toy: none"
    assert {p: p.read_bytes() for p in files(toy.folder) if p.name != "lock"} == before


# -- limit ----------------------------------------------------------------------------------------


def test_the_limit_holds_at_every_moment_and_the_newest_stays(tmp_path, monkeypatch):
    toy = ToyDisk(tmp_path / "prefix", limit=60_000)
    seen, replace_file = [], os.replace

    def watched(*paths):
        seen.append(nbytes(toy.folder))
        replace_file(*paths)

    monkeypatch.setattr(os, "replace", watched)
    for seed in range(12):
        assert toy.store(text(250, seed)).outcome == "stored"
        assert toy.restores(text(250, seed)) == 250
    assert 30_000 < max(seen) <= 60_000
    assert nbytes(toy.folder) <= toy.cache.nbytes <= 60_000
    assert toy.restores(text(250, 0)) == 0


def test_the_limit_counts_other_models_and_takes_from_them(tmp_path):
    toy = ToyDisk(tmp_path / "prefix", limit=60_000)
    toy.store(text(250))
    other = ToyDisk(toy.folder, limit=60_000, record=replace(RECORD, layout_hash="c"))
    for seed in range(8):
        other.store(text(250, seed))
    assert nbytes(toy.folder) <= 60_000
    assert toy.restores(text(250), toy.reopened()) == 0


def test_a_smaller_limit_holds_from_the_opening_on(toy):
    for seed in range(6):
        toy.store(text(250, seed))
    toy.limit = 40_000
    toy.reopened()
    assert 10_000 < nbytes(toy.folder) <= 40_000


def test_what_is_used_often_stays(tmp_path):
    toy = ToyDisk(tmp_path / "prefix", limit=60_000)
    toy.store(text(250, 0))
    for _ in range(20):
        assert toy.restores(text(250, 0)) == 250
    for seed in range(1, 10):
        toy.store(text(250, seed))
    assert toy.restores(text(250, 0), toy.reopened()) == 250


def test_what_is_used_from_memory_is_worth_as_much(tmp_path):
    toy = ToyDisk(tmp_path / "prefix", limit=60_000)
    point = toy.store(text(250, 0)).point
    for _ in range(20):
        toy.cache.touch(point.key)
    for seed in range(1, 10):
        toy.store(text(250, seed))
    assert toy.restores(text(250, 0), toy.reopened()) == 250


def test_what_others_continue_goes_last(tmp_path):
    toy = ToyDisk(tmp_path / "prefix", limit=70_000)
    system = text(128)
    toy.store(system)
    for seed in range(1, 9):
        toy.store([*system, *text(100, seed)])
    assert toy.restores(system, toy.reopened()) == 128


def test_a_point_with_a_name_is_never_removed_by_the_limit(tmp_path):
    toy = ToyDisk(tmp_path / "prefix", limit=60_000)
    toy.store(text(250), name="mine")
    for seed in range(1, 9):
        toy.store(text(250, seed))
        toy.restores(text(250, seed))
    assert toy.restores(text(250), toy.reopened()) == 250


def test_what_cannot_fit_is_refused_and_nothing_is_removed_for_it(tmp_path, warnings):
    toy = ToyDisk(tmp_path / "prefix", limit=40_000)
    toy.store(text(250), name="mine")
    toy.store(text(60, seed=1))
    for _ in range(2):
        report = toy.store(text(900, seed=2))
        assert report.outcome == "dropped"
    assert "more than the limit of 40000" in report.reason
    assert len(warnings()) == 1
    assert toy.restores(text(60, seed=1)) == 60


def test_chunks_that_no_point_needs_go_first(tmp_path):
    toy = ToyDisk(tmp_path / "prefix", limit=70_000)
    for seed in range(2):
        toy.store(text(250, seed))
    (toy.folder / f"{RECORD.salt:032x}" / "points" / f"{toy.found(text(250)).key:032x}").unlink()
    toy.cache = toy.reopened()
    for seed in (2, 3):
        toy.store(text(250, seed))
    assert [toy.restores(text(250, seed)) for seed in range(4)] == [0, 250, 250, 250]


def test_foreign_files_are_neither_removed_nor_believed(toy):
    toy.store(text(100))
    salt = toy.folder / f"{RECORD.salt:032x}"
    foreign = [toy.folder / "notes.txt", salt / "x", salt / "chunks" / "y", salt / "points" / "z"]
    foreign += [toy.folder / ("f" * 32), salt / "chunks" / f"{'0' * 32}-0-old"]
    for path in foreign:
        path.write_text("mine")
    target = toy.folder.parent / "elsewhere"
    target.write_text("mine")
    (salt / "points" / ("e" * 32)).symlink_to(target)
    toy.limit = 1
    toy.reopened()
    assert all(path.read_text() == "mine" for path in [*foreign, target])
    assert toy.restores(text(100), toy.reopened()) == 0


def test_a_folder_of_a_newer_format_is_counted_and_left_alone(tmp_path, warnings):
    toy = ToyDisk(tmp_path / "prefix")
    newer = toy.folder / ("a" * 32)
    for part in ("chunks", "points", "names"):
        (newer / part).mkdir(parents=True)
    (newer / "salt.json").write_text('{"format": 2, "what": "else"}')
    for path in (newer / "chunks" / f"{'b' * 32}-0", newer / "points" / ("c" * 32)):
        path.write_bytes(bytes(20_000))
    toy.limit = 60_000
    toy.cache = toy.reopened()
    assert toy.cache.nbytes >= 40_000
    for seed in range(3):
        toy.store(text(60, seed))
    assert len(files(newer)) == 3
    assert nbytes(toy.folder) <= 60_000
    assert warnings() == []


def test_damage_of_other_models_is_dropped_too_so_that_the_limit_holds(toy, warnings):
    other = ToyDisk(toy.folder, record=replace(RECORD, layout_hash="c"))
    point = other.store(text(100)).point
    path = toy.folder / f"{point.salt:032x}" / "points" / f"{point.key:032x}"
    path.write_bytes(b"short")
    toy.reopened()
    assert len(warnings()) == 1
    assert not path.exists()

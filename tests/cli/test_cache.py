"""`kinfolk cache`: what is on the disk is shown as it is, and only that is removed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from disk_scenes import RECORD, ToyDisk, files, nbytes, text


@pytest.fixture
def folder(tmp_path):
    """Two models; the second one has a point with a name. Foreign files are beside them."""
    folder = tmp_path / "cache" / "prefix"
    toy = ToyDisk(folder, record=replace(RECORD, model="Toy 1B"))
    toy.store(text(150))
    toy.store(text(200))
    toy.restores(text(200))
    other = ToyDisk(folder, record=replace(RECORD, model="Other", slice_length=99))
    other.store(text(100), name="before-lunch")
    (folder.parent / "kernels").mkdir()
    (folder.parent / "kernels" / "derived.bin").write_text("foreign")
    (folder / "notes.txt").write_text("foreign")
    return folder


@pytest.fixture
def cache(kinfolk, folder):
    """``cache("ls")`` runs the command on the folder."""

    def run(*arguments):
        return kinfolk("cache", *arguments, "--cache-dir", folder.parent)

    return run


@pytest.fixture
def listed(cache):
    """``listed()``: the models of `kinfolk cache ls --json`, by name."""

    def run():
        report = json.loads(cache("ls", "--json").stdout)
        return {model["model"]: model for model in report["models"]}

    return run


def foreign(folder):
    paths = [folder / "notes.txt", folder.parent / "kernels" / "derived.bin"]
    return [path.read_text() for path in paths]


def test_ls_lists_models_and_snapshots(cache, folder):
    lines = cache("ls").stdout.splitlines()
    assert lines[0].split() == ["model", "salt", "points", "tokens", "size", "last", "used", "hits"]
    (toy,) = (line.split() for line in lines if line.startswith("Toy 1B"))
    assert (toy[3], toy[4], toy[-1]) == ("2", "350", "1")
    assert "snapshots of Other: before-lunch (100 tokens)" in lines
    assert lines[-1].endswith(f" in {folder}")


def test_ls_lists_points_by_their_last_use(cache, listed):
    output = cache("ls", "--points").stdout
    points = listed()["Toy 1B"]["points"]
    assert {(point["tokens"], point["hits"]) for point in points} == {(150, 0), (200, 1)}
    assert all(point["hash"][:12] in output for point in points)
    (line,) = (line for line in output.splitlines() if "before-lunch" in line)
    assert line.split()[1] == "100"


def test_ls_of_json_has_the_bytes_of_the_files(listed, folder):
    total = sum(model["bytes"] for model in listed().values())
    beside = [path for path in files(folder) if path.parent.name in ("hits", "names")]
    beside += [folder / "lock", folder / "notes.txt"]
    assert total == nbytes(folder) - sum(path.stat().st_size for path in beside)


def test_a_folder_that_does_not_exist_is_empty_and_is_not_made(kinfolk, tmp_path):
    for command in (["ls"], ["verify"], ["rm", "--all"]):
        result = kinfolk("cache", *command, "--cache-dir", tmp_path / "none")
        assert result.exit_code == 0, result.output
    assert not (tmp_path / "none").exists()


def test_show_prints_the_header_and_the_first_tokens(cache, listed):
    (point,) = (point for point in listed()["Toy 1B"]["points"] if point["tokens"] == 150)
    report = json.loads(cache("show", point["hash"][:8], "--json").stdout)
    assert (report["hash"], report["tokens"], report["full_chunks"]) == (point["hash"], 150, 2)
    assert report["first_tokens"] == list(range(16))
    assert (report["model"], report["slice_length"], report["tensors"]) == ("Toy 1B", 512, 1)
    lines = cache("show", "before-lunch").stdout.splitlines()
    assert ["names", "before-lunch"] in [line.split() for line in lines]
    assert ["slice", "length", "99"] in [line.split() for line in lines]


def test_a_hash_that_fits_none_or_several_is_one_line(cache, folder):
    missing = cache("show", "zz")
    assert missing.exit_code == 2
    assert "has the name 'zz' or a hash that begins so" in missing.stderr
    toy = ToyDisk(folder, record=replace(RECORD, model="Toy 1B"))
    for length in range(1, 17):  # of 19 hashes two have the same first digit
        toy.store(text(length))
    digits = [one.name[0] for one in folder.glob("*/points/*")]
    (digit, count), *_ = Counter(digits).most_common(1)
    several = cache("rm", digit)
    assert several.exit_code == 2
    assert f"fits {count} points" in several.stderr
    assert cache("rm", "").exit_code == 2
    assert len(list(folder.glob("*/points/*"))) == len(digits) == 19


def test_verify_says_that_nothing_is_damaged(cache):
    result = cache("verify")
    assert result.exit_code == 0
    assert "3 points" in result.stdout
    assert "nothing is damaged" in result.stdout


@pytest.mark.parametrize("part", ["chunks", "points"])
def test_verify_finds_damage_and_removes_it_if_asked(cache, listed, folder, part):
    victim = next(path for path in files(folder) if path.parent.name == part)
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    found = cache("verify")
    assert found.exit_code == 1
    assert f"{victim}: the checksum of MiB 0 is wrong" in found.stdout
    assert "1 files are damaged" in found.stderr
    assert victim.exists()
    assert cache("verify", "--remove").exit_code == 0
    assert not victim.exists()
    assert cache("verify").exit_code == 0
    assert 1 <= sum(len(model["points"]) for model in listed().values()) < 3
    assert foreign(folder) == ["foreign"] * 2


def test_verify_misses_a_chunk_that_is_not_there(cache, folder):
    next(path for path in files(folder) if path.name.endswith("-0")).unlink()
    found = cache("verify")
    assert found.exit_code == 1
    assert "1 of its chunks are not there" in found.stdout
    assert cache("verify", "--remove").exit_code == 0
    assert cache("verify").exit_code == 0


def test_rm_removes_a_point_and_keeps_the_chunks_of_others(cache, listed, folder):
    (point,) = (point for point in listed()["Toy 1B"]["points"] if point["tokens"] == 200)
    before = nbytes(folder)
    assert "removed 1 points" in cache("rm", point["hash"][:10]).stdout
    assert nbytes(folder) < before
    assert [point["tokens"] for point in listed()["Toy 1B"]["points"]] == [150]
    assert ToyDisk(folder).restores(text(200)) == 150
    assert cache("verify").exit_code == 0


def test_rm_takes_names(cache, listed):
    assert cache("rm", "before-lunch").exit_code == 0
    assert listed()["Other"]["points"] == []


def test_rm_of_a_model_leaves_the_others(cache, listed, folder):
    salt = listed()["Toy 1B"]["salt"]
    (folder / salt / "mine.txt").write_text("foreign")
    assert "removed 2 points of 1 models" in cache("rm", "--model", "Toy 1B").stdout
    left = {name: len(model["points"]) for name, model in listed().items()}
    assert left == {"Other": 1, "Toy 1B": 0}
    assert (folder / salt / "mine.txt").read_text() == "foreign"
    assert cache("rm", "--model", listed()["Other"]["salt"][:6]).exit_code == 0
    assert not (folder / f"{replace(RECORD, slice_length=99).salt:032x}").exists()


def test_rm_of_everything_touches_nothing_foreign(cache, folder):
    assert cache("rm", "--all").exit_code == 0
    assert foreign(folder) == ["foreign"] * 2
    assert [path.name for path in files(folder)] == ["lock", "notes.txt"]
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []
    toy = ToyDisk(folder)
    assert toy.store(text(100)).outcome == "stored"


@pytest.mark.parametrize("arguments", [[], ["aa", "--all"], ["--all", "--model", "x"]])
def test_rm_needs_exactly_one_way_to_say_what(cache, arguments):
    result = cache("rm", *arguments)
    assert result.exit_code == 2
    assert "name points, or --model MODEL, or --all" in result.stderr


def test_an_unknown_model_is_one_line(cache):
    result = cache("rm", "--model", "nobody")
    assert result.exit_code == 2
    assert "belongs to a model 'nobody'" in result.stderr


@pytest.mark.parametrize("command", ["ls", "show", "verify", "rm"])
def test_every_subcommand_teaches_by_example_and_explains_its_options(kinfolk, command):
    result = kinfolk("cache", command, "--help")
    assert f"kinfolk cache {command}" in result.output.split("Examples:")[1]
    options = result.output.partition("Options:")[2].partition("Examples:")[0]
    assert all(len(line.split()) > 2 for line in options.strip().splitlines())


def test_the_command_imports_no_torch(folder):
    code = (
        "import sys\nfrom kinfolk.cli.main import cli\n"
        f"cli.main(['cache', 'ls', '--cache-dir', {str(folder.parent)!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "before-lunch" in done.stdout

"""`kinfolk new-family` writes a whole plugin, valid under every name, and overwrites no file."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from kinfolk.cli.main import cli
from kinfolk.errors import KinfolkError, OutputError, SettingsError
from kinfolk.hookspecs import API
from kinfolk.scaffold.write import NewFamily, render, write_family

NAMES = ("olive", "olive-2", "a", "x1-y2-z3", "class", "a" * 40)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_filled_in_and_valid(name):
    family = NewFamily(name)
    files = render(family)
    assert {str(path) for path in files} >= {
        "pyproject.toml",
        "README.md",
        "tests/test_conformance.py",
        f"{family.module}/py.typed",
        *(f"{family.module}/{part}.py" for part in ("plugin", "family", "hooks", "tiny", "model")),
    }
    for path, text in files.items():
        assert "$" not in text, path
        if path.suffix == ".py":
            ast.parse(text)
    project = tomllib.loads(files[Path("pyproject.toml")])
    assert project["project"]["name"] == f"kinfolk-{name}"
    assert project["project"]["entry-points"]["kinfolk"] == {name: f"{family.module}.plugin"}
    assert f"KINFOLK_API = {API}" in files[Path(family.module, "plugin.py")]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Olive",
        "olive_2",
        "2olive",
        "-olive",
        "olive-",
        "o--live",
        "öl",
        "a b",
        "../x",
        "a/b",
        "a.b",
        "a" * 41,
        "kinfolk",
        "kernels",
        "none",
        *("dense", "family", "family-base", "inventory", "weight-plan"),
        "olive\n",
    ],
)
def test_names_that_cannot_be_all_of_it_are_refused(name):
    with pytest.raises(SettingsError, match=r"cannot name a family|belongs to the core"):
        NewFamily(name)


def test_its_page_names_every_module_and_documentation_that_is_installed():
    files = render(NewFamily("olive"))
    page = files[Path("README.md")]
    modules = {path.name for path in files if path.parts[0] == "kinfolk_olive"}
    told = set(re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE))
    assert told == modules - {"__init__.py", "py.typed"}
    documented = re.findall(r"python -m pydoc (\S+)", page)
    assert documented
    assert all(importlib.util.find_spec(name) for name in documented)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    target = tmp_path / "kinfolk-olive"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        write_family(NewFamily("olive"), target)
    assert [path.name for path in target.iterdir()] == ["notes.txt"]


def test_a_file_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "kinfolk-olive").write_text("mine")
    with pytest.raises(OutputError):
        write_family(NewFamily("olive"), tmp_path / "kinfolk-olive")
    assert (tmp_path / "kinfolk-olive").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_family(NewFamily("olive"), tmp_path / "file" / "inside")


def test_an_empty_folder_may_be_named(tmp_path):
    written = write_family(NewFamily("olive"), tmp_path)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_what_is_written_is_formatted_and_lints(repo, tmp_path):
    write_family(NewFamily("olive"), tmp_path / "kinfolk-olive")
    rules = ["--line-length", "100", "--no-cache"]
    for words in (
        ["check", "--select", "E,F,W,I,UP,B,C4,SIM,RET,PT,RUF", "--target-version", "py311"],
        ["format", "--check"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", words[0], "--isolated", *words[1:], *rules, "."],
            cwd=tmp_path / "kinfolk-olive",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_family_is_less_than_two_hundred_lines_without_what_tests_it(tmp_path):
    """The promise to authors of plain decoders."""
    files = render(NewFamily("olive"))
    lines = sum(
        text.count("\n")
        for path, text in files.items()
        if path.suffix == ".py" and path.stem not in ("tiny", "reference", "test_conformance")
    )
    assert lines < 200


# -- the command ----------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def test_the_command_says_what_comes_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("new-family", "olive")
    assert done.exception is None
    assert (tmp_path / "kinfolk-olive" / "kinfolk_olive" / "family.py").is_file()
    assert '  pip install -e "./kinfolk-olive[test]"' in done.output.splitlines()
    assert "  kinfolk check olive" in done.output.splitlines()


def test_a_second_time_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("new-family", "olive")
    (tmp_path / "kinfolk-olive" / "kinfolk_olive" / "model.py").write_text("mine")
    done = invoke("new-family", "olive")
    assert isinstance(done.exception, KinfolkError)
    assert (tmp_path / "kinfolk-olive" / "kinfolk_olive" / "model.py").read_text() == "mine"


def test_the_folder_can_be_chosen(tmp_path):
    done = invoke("new-family", "olive", str(tmp_path / "here"), "--json")
    assert done.exception is None
    assert (tmp_path / "here" / "pyproject.toml").is_file()


@pytest.mark.parametrize("name", ["qwen35", "gemma4"])
def test_a_name_that_an_installed_plugin_has_is_refused(name, tmp_path):
    done = invoke("new-family", name, str(tmp_path / "here"))
    assert isinstance(done.exception, SettingsError)
    assert "already has the name or architecture" in str(done.exception)
    assert not (tmp_path / "here").exists()


def test_a_family_may_be_written_anew_while_it_is_installed(tmp_path, monkeypatch):
    """Its own distribution does not count as another plugin: the new one replaces it."""
    site, here = tmp_path / "site", tmp_path / "here"
    write_family(NewFamily("caper"), site)
    info = site / "kinfolk_caper-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: kinfolk-caper\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[kinfolk]\ncaper = kinfolk_caper.plugin\n")
    monkeypatch.syspath_prepend(site)
    done = invoke("new-family", "caper", str(here))
    assert done.exception is None
    assert "another kinfolk-caper is installed" in done.stderr
    assert (here / "pyproject.toml").is_file()


def test_rows_of_heads_are_taken_as_files_of_the_architecture_hold_them():
    halves, neighbours = (render(NewFamily(name)) for name in ("olive", "granite"))
    for files, name, expected in ((halves, "olive", False), (neighbours, "granite", True)):
        module = Path(f"kinfolk_{name}")
        assert ("half_split(" in files[module / "model.py"]) == expected
        assert ("neighbours=True" in files[module / "convert.py"]) == expected
        assert ("x[..., ::2]" in files[module / "reference.py"]) == expected

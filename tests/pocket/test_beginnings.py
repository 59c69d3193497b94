"""Beginnings of functions and classes, for a drafter's trainer."""

from __future__ import annotations

import json

import pytest
from pocket.beginnings import CHARACTERS, beginnings, write
from pocket.corpus import Place

CODE = '''"""A module."""

import os


def first(path):
    """Return the first line of a file."""
    with open(path, encoding="utf-8") as file:
        return file.readline()


class Second:
    """Holds a value."""

    def __init__(self, value):
        self.value = value
        self.name = os.path.basename(str(value))
'''


@pytest.fixture
def places(tmp_path):
    found = []
    for n in range(6):
        file = tmp_path / f"m{n}.py"
        file.write_text(f"# {n}\n{CODE}")
        found.append(Place("a", file.name, file))
    (tmp_path / "bad.py").write_text("def (")
    return [*found, Place("a", "bad.py", tmp_path / "bad.py")]


def test_a_beginning_is_whole_lines_from_a_definition_on(places):
    found = list(beginnings(places, seed=3))
    assert 0 < len(found) <= 6
    for text in found:
        assert text.startswith(("def first(path):\n", "class Second:\n"))
        assert text.endswith("\n")
        assert text in CODE
        assert CHARACTERS[0] <= len(text) <= CHARACTERS[1]


def test_the_seed_decides_which(places):
    assert list(beginnings(places, 3)) == list(beginnings(places[::-1], 3))
    assert any(list(beginnings(places, 3)) != list(beginnings(places, n)) for n in (4, 5, 6))


def test_as_many_are_written_as_asked_for(places, tmp_path):
    assert write(tmp_path / "out.jsonl", places, 2, 3) == 2
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [list(json.loads(line)) for line in lines] == [["text"], ["text"]]

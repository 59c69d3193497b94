"""The pages of what tests show name tests that exist."""

from __future__ import annotations

import re

import pytest

PAGES = {"docs/speculation_tests.md": (6, 100), "docs/paging_tests.md": (5, 50)}
"""Tables of each page, and tests that it names at least."""

TITLES = "| what holds | tests | not shown |"


@pytest.fixture(params=PAGES)
def page(request) -> str:
    return request.param


@pytest.fixture
def lines(repo, page) -> list[list[str]]:
    """The cells of every line of the page's tables."""
    text = (repo / page).read_text()
    tables = re.findall(rf"^{re.escape(TITLES)}\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == text.count("\n## ") == PAGES[page][0]
    return [
        [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        for table in tables
        for line in table.splitlines()
    ]


def named_in(cell: str) -> list[tuple[str, str]]:
    """File and name of each test of a cell: names stand behind their file."""
    found, path = [], ""
    for word in re.findall(r"`([^`]+)`", cell):
        if "/" in word:
            path = word
        else:
            found.append((path, word))
    return found


def test_every_test_that_the_page_names_exists(repo, page, lines):
    named = {test for line in lines for cell in line[1:] for test in named_in(cell)}
    missing = []
    for path, name in sorted(named):
        text = (repo / path).read_text() if (repo / path).is_file() else ""
        if not re.search(rf"^ *(?:async )?def {re.escape(name)}\(", text, re.MULTILINE):
            missing.append(f"{path}: {name}")
    assert missing == []
    assert len(named) > PAGES[page][1]


def test_every_line_names_a_test_or_says_what_is_missing(lines):
    assert [line[0] for line in lines if len(line) != 3 or not (line[1] or line[2])] == []
    assert [line[0] for line in lines if line[1] and not named_in(line[1])] == []

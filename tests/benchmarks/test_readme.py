"""The README's tables: speeds are the newest results, and cards agree with the planner."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace

import pytest
import torch

from kinfolk.engine import preparing
from kinfolk.gguf.file import GGUFFile
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


def table(page: str, head: str) -> list[str]:
    """The lines of the table whose header begins with this text."""
    (lines,) = re.findall(rf"^{re.escape(head)}.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return lines.splitlines()


@pytest.fixture(scope="module")
def page(repo) -> str:
    return (repo / "README.md").read_text()


@pytest.fixture(scope="module")
def cards(repo):
    return runpy.run_path(str(repo / "benchmarks/cards.py"))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.discover(load_settings())


def test_the_readmes_speeds_are_the_newest_results_of_its_card(repo, page):
    (card,) = re.findall(r"Tokens a second on one (NVIDIA \w+)", page)
    newest = {}
    for path in sorted((repo / "benchmarks/results").glob("*.json")):
        result = json.loads(path.read_text())
        if result["machine"]["name"] == card:
            newest |= {(row["shape"], row["case"]): row for row in result["rows"]}
    for line in table(page, "| shape | case |"):
        shape, case, shown, _ = (cell.strip() for cell in line.strip("|").split(" | "))
        kind = {"prompt": "prompt_", "http,": ""}.get(case.partition(" ")[0], "generate_")
        measured = newest[shape, case][f"{kind}tokens_per_second"]
        decimals = len(shown.partition(".")[2])
        assert f"{measured:.{decimals}f}" == shown, line


def test_the_readmes_cards_are_what_the_planner_says(page, cards, registry):
    assert page.count(cards["head"]() + "\n") == 1
    rows = [cards["row"](shape, registry) for shape in cards["SHAPES"]]
    assert table(page, "| shape | weights, GiB |") == rows


def test_the_readme_says_what_is_taken_of_a_card(page, cards):
    assert f"{cards['TAKEN']} GiB" in page


@pytest.mark.parametrize("family", ["qwen35", "gemma4", "laguna", "qwen35moe"])
def test_cards_are_divided_as_by_the_planner_of_a_gpu(cases, cards, registry, monkeypatch, family):
    """The same parts and limits as ``kinfolk plan`` shows, where a card has so much memory."""
    usable = cards["usable_bytes"](8)
    monkeypatch.setattr(preparing, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(preparing, "usable_memory", lambda device, limit: usable)
    path = cases / f"{family}.gguf"
    with GGUFFile.open(path) as file:
        model = cards["Model"](file.metadata, file.inventory, registry)
    for context in (None, 512):
        asked = {} if context is None else {"context": context}
        settings = load_settings(device="cuda", weights="packed", **asked)
        planned = preparing.prepare_model(path, settings, registry)
        with planned.file:
            assert planned.memory.parts == model.memory(usable, context).parts
            # What the host has free is no property of a card.
            limits = replace(planned.memory.limits, host_bytes=0)
            assert planned.memory.beside > 0
            assert limits == replace(model.memory(usable, context).limits, host_bytes=0)

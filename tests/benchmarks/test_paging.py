"""The benchmark of paging, with small numbers: every row is taken, with its goal beside it, or says
why not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys

import pytest

from kinfolk.engine.bundled import bundled_model
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


@pytest.fixture(scope="module")
def paging(repo):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repo / "benchmarks"))
        recall = importlib.import_module("recall")
        patch.setattr(recall, "CHUNKS", 12)
        patch.setattr(recall, "KINDS", {"ids": recall.KINDS["ids"]})
        patch.setattr(recall, "ANSWER", 2)
        spec = importlib.util.spec_from_file_location("paging", repo / "benchmarks/paging.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "paging", module)
        spec.loader.exec_module(module)
        drafts = importlib.import_module("paging_drafts").DRAFTS
        patch.setitem(drafts, "kvflash", 9 * 64)
        patch.setitem(drafts, "kvflash_burst", 1)
        yield module
        for name in (
            "recall",
            "forced",
            "policies",
            "resume",
            "lookup_trees",
            "paging_bits",
            "paging_drafts",
            "paging_engine",
            "paging_quality",
        ):
            sys.modules.pop(name, None)


@pytest.fixture
def run(paging, cases, tmp_path):
    """``run(*options)``: the rows of the file."""
    result = tmp_path / "result.json"
    small = [
        *("--model", str(cases / "qwen35.gguf"), "--device", "cpu", "--json", str(result)),
        *("--context", "1500", "--budget", "832", "--burst", "3", "--short", "600"),
        *("--tokens", "70", "--chunk", "100", "--depths", "0,512", "--sequences", "1,2"),
        *("--codecs", "q8_0", "--host", "0.1", "--compressed", "1200", "--keep-ratio", "0.2"),
        *("--each", "1", "--places", ".4", "--forced", "6"),
    ]

    def start(*options, fails=False):
        if fails:
            with pytest.raises(SystemExit):
                paging.main([*small, *options])
        else:
            paging.main([*small, *options])
        return json.loads(result.read_text())["rows"]

    return start


def by_name(rows):
    taken = {}
    for row in rows:
        taken.setdefault(row["row"], []).append(row)
    return taken


def test_every_row_is_taken(paging, run, capsys):
    """The forward of prompts is left out, what moves is not: exchanges and evictions are those of
    the rules."""
    taken = by_name(run("--rows", ",".join(paging.ROWS)))
    assert not [row for rows in taken.values() for row in rows if "skipped" in row]
    one, two = taken["step"]
    assert one["attended"] == (832 // 64 - 3 - 1) * 64
    assert one["steps"] == one["waits"] >= 69
    assert one["kvflash_evictions"] in (1, 2)
    assert two["kvflash_evictions"] == 2 * one["kvflash_evictions"]
    assert two["steps"] == one["steps"], "both decode in the same steps"
    drawn, attention = taken["choosing"]
    assert (drawn["scorer"], attention["scorer"]) == ("drawn", "qk")
    assert drawn["exchanges_a_round"] == 3
    for choosing in (drawn, attention):
        assert choosing["rounds"] == 1
        assert choosing["captures"] == choosing["allocations"] == 0
        assert 0 < choosing["host_share_of_decode"] < 1
    assert taken["leaving"][0]["host_us_an_eviction"] > 0
    assert list(taken["memory"][0]["bytes"]) == ["600", "1500"]
    assert taken["memory"][0]["digest_bytes"] > 0
    pieces = [(row["which"], row["depth"]) for row in taken["piece"]]
    assert pieces == [(which, depth) for which in ("full", "paged") for depth in (0, 512)]
    assert taken["whole"][0]["tokens"] == 1499
    for full, step in zip(taken["full"], (two, one), strict=True):
        assert full["sequences"] == step["sequences"]
        assert full["times_faster"] == round(full["ms"] / step["paged_ms"], 3)
    for relocated in taken["relocated"]:
        assert (relocated["steps"], relocated["differing"]) == (6, 0)
        assert relocated["exchanges"] >= 6
    (unmoved,) = taken["unmoved"]
    assert (unmoved["tokens"], unmoved["evictions"], unmoved["differing"]) == (64, 0, 0)
    (recall,) = taken["recall"]
    assert recall["total"] == {"ids": 2}
    for prompts in ("exact", "pooled"):
        assert recall["recalls"][prompts] > 0
        share = recall[prompts]["ids"] / recall["resident"]["ids"]
        assert recall[f"of_resident_{prompts}"] == share
    for name in ("drafts", "trees"):
        (drafts,) = taken[name]
        assert (drafts["texts"], drafts["tokens"]) == (1, 64)
        nodes, drafted, kept = (drafts[each] for each in ("nodes", "drafted", "kept"))
        for where, percent in drafts["kept_percent"].items():
            assert 0 < kept[where] <= drafted[where] <= nodes[where]
            assert (nodes[where] > drafted[where]) == (name == "trees")
            assert percent == pytest.approx(100 * kept[where] / drafted[where], abs=0.01)
        for each in (nodes, drafted):
            assert each["same_text"] == each["resident"], "what is drafted depends on the text"
    (compressed,) = taken["compressed"]
    assert 2 * compressed["compressed_tokens"] < compressed["tokens"] <= 1200
    for name, goals in paging.GOALS.items():
        for row in taken[name]:
            assert [each["figure"] for each in row["goals"]] == [each[0] for each in goals]
    assert capsys.readouterr().out.count("goal ") == sum(
        len(paging.GOALS[name]) * len(taken[name]) for name in paging.GOALS
    )


@pytest.mark.parametrize("row", ["drafts", "trees"])
def test_while_nothing_has_left_the_same_drafts_are_kept(paging, row):
    """Nor is anything else counted where the answer that is given is the model's own."""
    drafts = importlib.import_module("paging_drafts")
    registry, source = Registry.discover(load_settings()), random.Random(3)
    path = bundled_model(registry)
    prompts = [tuple([source.randrange(256, 2000) for _ in range(100)] * 3)]
    with drafts.opened(path, registry, "cpu", row) as runtime:
        answers, resident = drafts.answered(runtime, prompts)
        assert drafts.answered(runtime, prompts, answers) == (answers, resident)
    assert resident.kept > 20
    with drafts.opened(path, registry, "cpu", row, **drafts.DRAFTS) as runtime:
        assert drafts.answered(runtime, prompts) == (answers, resident)
        assert runtime.engine.stats()["kvflash_evictions"] == 0


def test_rows_are_written_as_they_end_and_one_that_fails_stops_no_other(paging, run, monkeypatch):
    def broken(study, bench):
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(paging.Study, "_leaving", broken)
    rows = ("--rows", "leaving,full", "--sequences", "1", "--tokens", "10")
    leaving, far, full = run(*rows, fails=True)
    assert leaving["failed"] == "of the test"
    assert "ZeroDivisionError" in leaving["trace"]
    assert full["times_faster"] == round(full["ms"] / far["ms"], 3)


def test_after_the_limit_no_row_begins(run):
    rows = run("--limit", "0")
    assert len(rows) > 8
    assert all(row["skipped"] == "--limit 0 is over" for row in rows)


def test_a_row_that_does_not_exist_is_refused(paging, capsys):
    with pytest.raises(SystemExit):
        paging.main(["--model", "x", "--rows", "steps"])
    assert "steps: rows are step, leaving" in capsys.readouterr().err

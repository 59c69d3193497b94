"""The benchmark of the needle model, with a tiny one that was trained for texts of 1024 tokens."""

from __future__ import annotations

import importlib
import json
import sys

import pytest


@pytest.fixture
def needles(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    path = list(sys.path)
    yield importlib.import_module("needles")
    sys.path[:] = path
    del sys.modules["needles"]


@pytest.fixture
def model(repo):
    return repo / "tests" / "data" / "needle.gguf"


def options(model, *more):
    return ["--model", str(model), "--device", "cpu", "--lengths", "1024", *map(str, more)]


@pytest.mark.parametrize(
    ("policies", "each"), [("qk", 1), pytest.param("all,qk,lru,pflash", 4, marks=pytest.mark.long)]
)
def test_the_server_answers_what_is_chosen_and_nothing_that_is_away(
    needles, model, tmp_path, policies, each
):
    file = tmp_path / "rows.json"
    more = ("--resident", 50, "--depths", ".3,.5", "--each", each, "--decoys", each, "--slots", 2)
    more += ("--policies", policies, "--compressed", 4, "--keep", ".2", "--json", file)
    needles.main(options(model, *more))
    rows = json.loads(file.read_text())["rows"]
    assert {row["policy"] for row in rows} == set(policies.split(","))
    for row in rows:
        assert row["asked"] == (4 if row["policy"] == "pflash" else each)
        assert not row["errors"]
        assert row["in_full"] == 0
        assert row["inexact"] == (row["asked"] if row["policy"] in ("qk", "lru") else 0)
        assert row["right"] * 32 <= row["words"] <= row["asked"] * 32
        if row["policy"] == "lru":
            assert row["right"] == 0
            assert row["goal"] is None
        elif row["kind"] == "needle":
            assert row["right"] >= 0.75 * row["asked"]
            assert row["policy"] == "all" or row["goal"] is not None


def test_a_row_that_fails_is_no_met_goal(needles):
    row = needles.Row("qk", "needle", 1024, 0.5, 8)
    assert needles.Result(row).met is False
    assert needles.Result(row, asked=16, right=15).met is False
    assert needles.Result(row, asked=16, right=16).met is True
    decoys = needles.Row("qk", "decoys", 1024, None, 8)
    assert [needles.Result(decoys, 64, right).met for right in (59, 60)] == [False, True]
    assert needles.Result(needles.Row("lru", "needle", 1024, 0.5, 8), 16, 16).met is None


def test_facts_lie_in_one_chunk_and_the_answer_is_in_the_text(needles, model):
    from kinfolk.engine.text import open_text
    from kinfolk.registry import Registry
    from kinfolk.settings import load_settings

    settings = load_settings()
    tokenizer, _, _ = open_text(model, settings, Registry.discover(settings))
    questions = needles.Questions(tokenizer, 3)
    for kind, count in (("needle", 6), ("decoys", 8)):
        row = needles.Row("qk", kind, 2048, 0.1 if kind == "needle" else None)
        for question in questions.of(row, count):
            ids = list(tokenizer.encode(question.prompt))
            assert len(ids) == 2048
            words = [tokenizer.decode([each]).strip(" ") for each in ids]
            value = list(question.value)
            (at,) = (n for n in range(len(words)) if words[n : n + 32] == value)
            assert words[at - 1] == "="
            assert words[at - 7 : at] == words[-7:], "the key of the question"
            assert (at - 9) // 64 == (at + 32) // 64
            assert words.count("@") == (1 if kind == "needle" else 8)
            assert 1 <= (at // 64) < 2048 // 64 - 4
        assert questions.of(row, count) == questions.of(row, count)


def test_a_budget_in_which_nothing_can_be_chosen_is_refused(needles):
    assert [needles.chunks(8192, percent) for percent in (6, 9)] == [8, 12]
    assert [needles.chunks(32768, percent) for percent in (6, 9)] == [31, 46]
    with pytest.raises(ValueError, match="6 % of 4096 tokens are 4 chunks, and a budget needs 8"):
        needles.chunks(4096, 6)


@pytest.mark.long
def test_a_server_that_does_not_start_is_an_error_with_its_words(needles, model, tmp_path):
    with pytest.raises(RuntimeError, match="no such file"), needles.serving(["-m", tmp_path / "x"]):
        pass

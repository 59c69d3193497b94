"""``compress`` with real models: what is kept, what is parked meanwhile, and what faults leave."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest
import torch
from talk import Talk, eventually

from kinfolk.daemon.frames import Wire
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.loading import ModelSource
from kinfolk.engine.prompt_scorer import PromptScorer
from kinfolk.engine.text import open_text
from kinfolk.engine.token_compressor import TokenCompressor
from kinfolk.errors import EngineError
from kinfolk.sched.prompt_scoring import ScoringRequest
from kinfolk.settings import load_settings

DONE, OVER, FAILED = -1, -4, -5
VALUES = {"device": "cpu", "dtype": "f32"}


@pytest.fixture
def opened(monkeypatch):
    """The files of the models that were loaded to compress, in order."""
    found = []
    open_scorer = PromptScorer.open.__func__

    def counted(cls, path, *arguments):
        found.append(path.name)
        return open_scorer(cls, path, *arguments)

    monkeypatch.setattr(PromptScorer, "open", classmethod(counted))
    return found


@pytest.fixture
def compressing(engine, registry, cases, tmp_path):
    """``compressing(wire)``: a connection to an engine of a tiny model, that can compress."""
    opened = []

    def start(wire=Wire.TAGGED_V2, *, path=None, model=None):
        running, settings = engine(model=model), load_settings(**VALUES)
        tokenizer = open_text(path or cases / "qwen35.gguf", settings, registry)[0]
        compressor = TokenCompressor(running, tokenizer, settings, registry)
        opened.append((Talk(running, tmp_path, wire, compressor=compressor), compressor))
        return opened[-1][0], running

    yield start
    for talk, compressor in opened:
        talk.hang_up()
        talk.wait()
        with suppress(EngineError):  # it has stopped
            compressor.free()


def ids(count, seed=0):
    """No four of them in a row stand twice, so that scores alone decide."""
    return np.random.default_rng(seed).permutation(np.arange(10, 10 + count)).tolist()


def request(t, name="long.bin", keep=200, scorer="", more=""):
    return f"REQ 9 compress {t.folder}/{name} {keep} {scorer} {more}"


def expected(path, registry, tokens, ratio):
    """What is to be kept, from the model's scores of the whole: written down plainly."""
    scorer = PromptScorer.open(path, load_settings(**VALUES), registry)
    books = scorer.books()
    books.submit(ScoringRequest("alone", tuple(tokens)))
    with torch.inference_mode():
        while books.busy:
            books.commit(scorer.launch(books.plan()).collect())
    scorer.close()
    (event,) = books.take_events()
    smooth = [event.scores[max(0, n - 6) : n + 7].mean() for n in range(len(tokens))]
    passages = range(0, len(tokens), 32)
    means = {start // 32: np.mean(smooth[start : start + 32]) for start in passages}
    wanted = int(len(means) * ratio + 1e-9)
    head = 8 * (wanted - 1) // 32
    kept = {*range(head), *range(len(means) - (wanted - 1 - head), len(means))}
    for passage in sorted(means, key=lambda n: -means[n]):
        if len(kept) < wanted:
            kept.add(passage)
    return [token for n in sorted(kept) for token in tokens[32 * n : 32 * n + 32]]


@pytest.mark.parametrize("more", ["", "nopark"])
@pytest.mark.parametrize("wire", list(Wire))
def test_the_tokens_that_the_model_finds_important_are_kept_in_order(
    compressing, cases, registry, wire, more
):
    t, running = compressing(wire)
    tokens = ids(600)
    t.file("long.bin", tokens)
    line = request(t, scorer=cases / "qwen35.gguf", more=more)
    number = 9 if wire.tagged else 0
    t.say(line if wire.tagged else line.removeprefix("REQ 9 "))
    t.until(number, DONE)
    kept = expected(cases / "qwen35.gguf", registry, tokens, 0.2)
    assert t.tokens[number] == kept
    assert t.frames == [*((number, token) for token in kept), (number, DONE)]
    assert running.parked == frozenset()


def test_a_model_compresses_for_another_one_with_its_tokens(compressing, cases, registry):
    t, _ = compressing()
    tokens = ids(300, seed=3)
    t.file("long.bin", tokens)
    t.say(request(t, keep=500, scorer=cases / "qwen35moe.gguf"))
    t.until(9, DONE)
    assert t.tokens[9] == expected(cases / "qwen35moe.gguf", registry, tokens, 0.5)


def test_the_bundled_model_compresses_a_text_that_is_longer_than_it_reads_at_once(
    compressing, registry, load, monkeypatch
):
    monkeypatch.setattr("kinfolk.engine.prompt_scorer.SCORED_POSITIONS", 512)
    path = bundled_model(registry)
    t, _ = compressing(path=path, model=load(path))
    tokens = [number * 13 % 390 + 5 for number in range(1500)]
    t.file("long.bin", tokens)
    t.say(request(t, keep=300, scorer=path))
    t.until(9, DONE)
    kept = t.tokens[9]
    assert kept[-32:] == tokens[-32:]
    rest = iter(tokens)
    assert all(token in rest for token in kept), "in the order of the file"
    assert 0.25 * 1500 < len(kept) < 0.6 * 1500
    assert t.texts[9] == [f"kept={len(kept)} of=1500"]


def test_the_target_is_parked_while_it_scores_and_comes_back_the_same(
    compressing, cases, monkeypatch
):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(300))
    t.say(f"REQ 1 START {t.folder}/p.bin 6 6")
    t.until(1, DONE)
    seen, launch = [], PromptScorer.launch

    def watched(scorer, planned):
        seen.append(running.parked)
        return launch(scorer, planned)

    monkeypatch.setattr(PromptScorer, "launch", watched)
    t.say(request(t, scorer=cases / "qwen35.gguf"), f"REQ 2 START {t.folder}/p.bin 6 6")
    t.until(2, DONE)
    assert set(seen) == {frozenset({"target"})}
    assert running.parked == frozenset()
    assert t.tokens[2] == t.tokens[1]
    seen.clear()
    t.say(request(t, scorer=cases / "qwen35.gguf", more="nopark"))
    t.until(9, DONE, count=2)
    assert set(seen) == {frozenset()}


def test_what_was_parked_before_stays_parked(compressing, cases):
    t, running = compressing()
    t.file("long.bin", ids(300))
    t.say("REQ 3 park target", request(t, scorer=cases / "qwen35.gguf"))
    t.until(9, DONE)
    assert len(t.tokens[9]) > 0
    assert running.parked == {"target"}
    t.say("REQ 4 unpark")
    t.until(4, DONE)
    assert running.parked == frozenset()


def test_a_model_stays_loaded_until_it_is_freed_or_the_target_needs_its_room(
    compressing, cases, opened
):
    t, _ = compressing()
    t.file("long.bin", ids(200))
    beside = request(t, scorer=cases / "qwen35.gguf", more="nopark")
    parked = request(t, scorer=cases / "qwen35.gguf")
    t.say(beside, beside)
    t.until(9, DONE, count=2)
    assert len(opened) == 1
    t.say("REQ 3 free drafter", "REQ 3 drafter free", beside)
    t.until(9, DONE, count=3)
    assert len(opened) == 2
    t.say(parked, beside)
    t.until(9, DONE, count=5)
    assert len(opened) == 3, "the parked one was there, and has gone"
    t.say(request(t, scorer=cases / "qwen35moe.gguf", more="nopark"))
    t.until(9, DONE, count=6)
    assert opened == ["qwen35.gguf"] * 3 + ["qwen35moe.gguf"]
    t.until(3, DONE, count=2)


def test_others_go_on_while_it_scores_without_parking(compressing, cases):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(600))
    t.say(f"REQ 1 START {t.folder}/p.bin 200 200", f"REQ 2 START {t.folder}/p.bin 3 1")
    t.say(request(t, scorer=cases / "qwen35.gguf", more="nopark"), "REQ 2 CONTINUE 2")
    t.until(1, DONE)
    t.until(2, DONE)
    t.until(9, DONE)
    assert t.tokens[1][:3] == t.tokens[2]
    assert len(t.tokens[1]) == 200
    running.check_integrity()


# -- cancelling -----------------------------------------------------------------------------------


@pytest.fixture
def stopped(monkeypatch):
    """``begun, go_on, slices``: scoring begins and waits before each slice that it reads."""
    begun, go_on, slices, launch = threading.Event(), threading.Event(), [], PromptScorer.launch

    def waits(scorer, planned):
        slices.append(planned)
        begun.set()
        assert go_on.wait(60)
        return launch(scorer, planned)

    monkeypatch.setattr(PromptScorer, "launch", waits)
    return begun, go_on, slices


@pytest.mark.parametrize("more", ["", "nopark"])
@pytest.mark.parametrize("how", ["CANCEL", "the reader goes"])
def test_it_ends_within_a_slice_and_the_target_comes_back(
    compressing, cases, stopped, tmp_path, how, more
):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(600))
    before = answers(t, 1)
    begun, go_on, slices = stopped
    t.say(request(t, scorer=cases / "qwen35.gguf", more=more))
    assert begun.wait(60)
    if how == "CANCEL":
        t.say("REQ 3 CANCEL 9")
        t.until(3, DONE)
        go_on.set()
        t.until(9, DONE)
        assert [frame for frame in t.frames if frame[0] == 9] == [(9, FAILED), (9, DONE)]
        assert t.texts[9] == ["err compress: it was cancelled"]
        assert answers(t, 2) == before
    else:
        t.leave()
        t.wait()
        assert t.lost == "the reader has gone"
        go_on.set()
        eventually(lambda: not running.parked)
        other = Talk(running, tmp_path)
        assert answers(other, 2) == before
        other.end()
    assert len(slices) == 1, "it was cancelled in the first of several"


def test_who_waits_for_another_session_can_be_cancelled(compressing, cases, stopped, tmp_path):
    t, running = compressing()
    t.file("long.bin", ids(600))
    other = Talk(running, tmp_path, compressor=t.compressor)
    begun, go_on, _ = stopped
    t.say(request(t, scorer=cases / "qwen35.gguf", more="nopark"))
    assert begun.wait(60)
    other.say(request(other, scorer=cases / "qwen35.gguf", more="nopark"), "REQ 3 CANCEL 9")
    other.until(9, DONE)
    assert other.texts[9] == ["err compress: it was cancelled"]
    go_on.set()
    t.until(9, DONE)
    assert len(t.tokens[9]) > 0
    other.end()


# -- faults ---------------------------------------------------------------------------------------


def answers(t, number):
    """That the engine still runs requests."""
    t.say(f"REQ {number} START {t.folder}/p.bin 4 4")
    t.until(number, DONE)
    return t.tokens[number]


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("none.gguf", "none.gguf"),
        ("p.bin", "p.bin"),
        ("gemma4", "its vocabulary is not that of the model"),
    ],
)
@pytest.mark.parametrize("more", ["", "nopark"])
def test_a_model_that_cannot_score_is_named_and_nothing_is_parked(
    compressing, cases, opened, scorer, message, more
):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(100))
    before = answers(t, 1)
    path = cases / "gemma4.gguf" if scorer == "gemma4" else t.folder / scorer
    t.say(request(t, scorer=path, more=more))
    t.until(9, DONE)
    assert [frame for frame in t.frames if frame[0] == 9] == [(9, FAILED), (9, DONE)]
    assert message in t.texts[9][0]
    assert (opened, running.parked) == ([], frozenset())
    assert answers(t, 2) == before


def test_a_token_that_no_vocabulary_has_is_refused(compressing, cases, opened):
    t, _ = compressing()
    t.file("long.bin", [5, 10**6, 7])
    t.say(request(t, scorer=cases / "qwen35.gguf"))
    t.until(9, DONE)
    assert "1000000" in t.texts[9][0]
    assert opened == []


def test_live_requests_of_another_session_refuse_parking_and_go_on(
    compressing, cases, opened, tmp_path
):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(100))
    other = Talk(running, tmp_path)
    other.say(f"REQ 1 START {t.folder}/p.bin 8 2")
    other.until(1, OVER)
    t.say(request(t, scorer=cases / "qwen35.gguf"))
    t.until(9, DONE)
    assert t.frames == [(9, FAILED), (9, DONE)]
    assert "have not ended" in t.texts[9][0]
    assert (opened, running.parked) == ([], frozenset())
    other.say("SCHED_DRAIN")
    other.until(1, DONE)
    assert len(other.tokens[1]) == 8
    other.end()


@pytest.mark.parametrize("where", ["loading", "scoring"])
@pytest.mark.parametrize("more", ["", "nopark"])
def test_an_error_while_it_loads_or_scores_brings_the_target_back(
    compressing, cases, monkeypatch, where, more
):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(300))
    before = answers(t, 1)

    load, calls = ModelSource.load, []

    def full(*_, **__):
        raise torch.OutOfMemoryError("no room at all")

    def first_fails(source, *arguments, **options):
        """The model that scores is loaded first, and then the target again."""
        calls.append(source)
        return full() if len(calls) == 1 else load(source, *arguments, **options)

    with monkeypatch.context() as patch:
        if where == "loading":
            patch.setattr(ModelSource, "load", first_fails)
        else:
            patch.setattr(PromptScorer, "launch", full)
        t.say(request(t, scorer=cases / "qwen35.gguf", more=more))
        t.until(9, DONE)
    assert [frame for frame in t.frames if frame[0] == 9] == [(9, FAILED), (9, DONE)]
    assert "the device ran out of memory" in t.texts[9][0]
    assert running.parked == frozenset()
    assert answers(t, 2) == before
    t.say(request(t, scorer=cases / "qwen35.gguf", more=more))
    t.until(9, DONE, count=2)
    assert len(t.tokens[9]) > 0


def test_a_target_that_cannot_come_back_stays_parked_until_it_can(compressing, cases, monkeypatch):
    t, running = compressing()
    t.file("p.bin", list(range(5, 40)))
    t.file("long.bin", ids(300))
    before = answers(t, 1)
    load, calls = ModelSource.load, []

    def second_fails(source, *arguments, **options):
        calls.append(source)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return load(source, *arguments, **options)

    monkeypatch.setattr(ModelSource, "load", second_fails)
    t.say(request(t, scorer=cases / "qwen35.gguf"))
    t.until(9, DONE)
    assert [frame for frame in t.frames if frame[0] == 9] == [(9, FAILED), (9, DONE)]
    assert "cannot unpark target: OSError: the disk is gone" in t.texts[9][0]
    assert running.parked == {"target"}
    t.say("REQ 5 unpark")
    t.until(5, DONE)
    assert answers(t, 2) == before


def test_an_engine_that_stops_meanwhile_ends_it_with_the_reason(compressing, cases, monkeypatch):
    t, running = compressing()
    t.file("long.bin", ids(600))
    begun, launch = threading.Event(), PromptScorer.launch

    def slow(scorer, planned):
        begun.set()
        eventually(lambda: running.pending_calls)
        return launch(scorer, planned)

    monkeypatch.setattr(PromptScorer, "launch", slow)
    t.say(request(t, scorer=cases / "qwen35.gguf", more="nopark"))
    assert begun.wait(60)
    running.close()
    t.until(9, DONE)
    assert (9, FAILED) in t.frames or len(t.tokens[9]) > 0
    t.end()

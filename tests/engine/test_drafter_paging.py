"""Chunks chosen by a second model that reads along (``--kvflash-policy drafter``)."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from kinfolk import hookimpl
from kinfolk.compress import back_off
from kinfolk.engine import loading
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.engine.memory import WEIGHTS
from kinfolk.engine.prompt_scorer import PromptScorer, planned_beside
from kinfolk.engine.readers import Readers, start_reading
from kinfolk.engine.runtime import Runtime
from kinfolk.engine.text import open_text
from kinfolk.hooks import HookProvider
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import CHUNK_SCORER_MODEL
from kinfolk.sched.prompt_scoring import ScoringRequest
from kinfolk.sched.request import Request, Sequence
from kinfolk.score_api import Scores
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS

BURST = 2
BUDGET = (1 + 4 + BURST + 3) * CHUNK_POSITIONS
CONTEXT = 1536
NEAR = 1e-4
"""Of a share of attention: slices of other lengths are summed in another order."""


@pytest.fixture(scope="module")
def settings():
    def make(**values):
        options = {
            "device": "cpu",
            "dtype": "f32",
            "context": CONTEXT,
            "slots": 3,
            "kvflash": BUDGET,
            "kvflash_burst": BURST,
            "kvflash_tau": 16,
            "kvflash_policy": "drafter",
            "draft": "off",
            **values,
        }
        return load_settings(**options)

    return make


@pytest.fixture(scope="module")
def paged(registry, cases, settings):
    """The model whose chunks are scored, and its tokenizer."""
    path = cases / "qwen35.gguf"
    return load_model(path, settings(), registry), open_text(path, settings(), registry)[0]


@pytest.fixture
def start(registry, cases, settings, paged):
    """``start(name, **limits)``: an engine with the model of a family that reads along; all is free
    once it is closed."""
    opened = []

    def run(name="qwen35", model=None, **limits):
        loaded, tokenizer = model or paged[0], paged[1]
        reader = PromptScorer.open(cases / f"{name}.gguf", settings(), registry, chunks=True)
        readers = Readers(chunks=reader, start=start_reading(tokenizer, reader))
        values = {"slots": 3, "context": CONTEXT, "step_tokens": 1024, "slice": 512, **limits}
        found = SchedulerLimits(vocabulary=loaded.info.vocabulary, **values)
        opened.append((Engine(loaded, found, readers=readers), reader))
        return opened[-1]

    yield run
    for engine, reader in opened:
        engine.close()
        engine.check_integrity()
        reader.kv_cache.check_integrity()
        assert len(reader.kv_cache.tables.free) == 3
        reader.close()


def tokens_of(count, seed=0):
    source = random.Random(seed)
    return tuple(source.randrange(256, 700) for _ in range(count))


@torch.inference_mode()
@pytest.mark.parametrize("family", ["qwen35", "gemma4"])
def test_scores_are_those_of_the_whole_text_read_at_once(registry, cases, settings, paged, family):
    """Read along in portions, and read as one text by a model that scores prompts, beside it and
    with the same weights: the mean of the scores of the tokens of each chunk is the same."""
    path, (_, tokenizer) = cases / f"{family}.gguf", paged
    at_once = PromptScorer.open(path, settings(kvflash_policy="qk"), registry)
    along = PromptScorer.open(path, settings(), registry, chunks=True, beside=at_once)
    readers = Readers(chunks=along, start=start_reading(tokenizer, along))
    reading, texts = readers.books().chunks, at_once.books()
    source = random.Random(0)
    words = " ".join("".join(source.choices("abcdefghij\n", k=5)) for _ in range(600))
    tokens = tuple(tokenizer.encode(words))
    assert len(tokens) > 816
    sequence = Sequence(Request("a", tokens[:700], 400), 0)
    sequence.lease = object()
    reading.started(sequence)
    for length in (700, 716, 816):
        sequence.known += tokens[len(sequence.known) : length]
        chunks = len(sequence.known) // CHUNK_POSITIONS
        assert reading.ask(sequence, chunks) is None
        answers = []
        while not answers:
            (pending,) = readers.launch([reading.plan()])
            answers = reading.commit(pending.collect())
        ids = tuple(sequence.read.ids)
        texts.submit(ScoringRequest("b", ids))
        while texts.busy:
            texts.commit(at_once.launch(texts.plan()).collect())
        (event,) = texts.take_events()
        expected = whole_chunks(tokenizer, at_once.tokenizer, sequence, ids, event.scores)
        assert np.allclose(answers[0].values, expected[:chunks], rtol=NEAR, atol=NEAR / 100)
    along.close()
    at_once.close()


def whole_chunks(tokenizer, reader, sequence, ids, scores):
    """The mean scores of chunks: of their own tokens, or of those in their text by bytes."""
    known = sequence.known
    if len(ids) == len(known) and ids == tuple(known):
        return [
            scores[start : start + CHUNK_POSITIONS].mean()
            for start in range(0, len(known), CHUNK_POSITIONS)
        ]
    ends = np.cumsum([len(tokenizer.token_bytes(token)) for token in known])[63::64]
    sizes = [0 if token == reader.bos else len(reader.token_bytes(token)) for token in ids]
    middles = np.cumsum(sizes) - np.array(sizes) / 2
    found = []
    for first, last in zip([0, *ends], ends, strict=False):
        found.append(scores[(middles >= first) & (middles < last)].mean())
    return found


@pytest.mark.parametrize("family", ["qwen35", pytest.param("laguna", marks=pytest.mark.long)])
def test_in_company_each_emits_what_it_emits_alone(start, collect, family):
    requests = [Request(str(n), tokens_of(850 + 60 * n, n), 40) for n in range(3)]
    engine, _ = start(family)
    alone = [collect(engine.submit(each)).tokens for each in requests]
    stats = engine.stats()
    assert stats["kvflash_recalls"] > 0
    assert stats["kvflash_selections"] >= 6
    assert stats["kvflash_reading_failures"] == stats["kvflash_scorer_failures"] == 0
    assert stats["kvflash_read_tokens"] > sum(len(each.prompt) for each in requests)
    together, _ = start(family)
    tickets = [together.submit(each) for each in requests]
    assert [collect(ticket).tokens for ticket in tickets] == alone


def test_others_go_on_while_a_prompt_is_read(start, monkeypatch):
    """A step has a slice for the model that reads beside the rows of those that decode."""
    engine, reader = start()
    beside = []
    launch = reader.launch

    def watched(planned):
        assert planned.item.model == CHUNK_SCORER_MODEL
        beside.append(len(seen))
        return launch(planned)

    monkeypatch.setattr(reader, "launch", watched)
    seen, begun, ended = [], threading.Event(), threading.Event()

    def listen(event):
        if hasattr(event, "reason"):
            ended.set()
            return
        seen.extend(event.tokens)
        begun.set()

    engine.submit(Request("short", tokens_of(40), 200), listen)
    assert begun.wait(60)
    for _ in engine.submit(Request("long", tokens_of(1300, 1), 8)):
        pass
    assert ended.wait(60)
    assert len(seen) == 200
    slices = [count for count in beside if 0 < count < 200]
    assert len(slices) >= 3
    assert all(later > earlier for earlier, later in pairwise(slices))


def test_an_error_of_the_model_costs_rounds_and_no_request(start, collect, monkeypatch, caplog):
    engine, reader = start()

    def broken(*arguments):
        raise RuntimeError("no device")

    monkeypatch.setattr(reader.reading, "begin", broken)
    monkeypatch.setattr(back_off, "FIRST_WAIT", 1000.0)  # longer than the request
    outcome = collect(engine.submit(Request("a", tokens_of(900), 40)))
    assert len(outcome.tokens) == 40
    assert outcome.end.error is None
    stats = engine.stats()
    # And the slice that was read ahead.
    assert stats["kvflash_reading_failures"] == stats["kvflash_selections"] + 1 >= 3
    told = [each for each in caplog.records if "by recency this time" in each.message]
    assert len(told) == 1
    assert "no device" in told[0].message
    # The next try would wait; a model that is loaded again is tried at once.
    monkeypatch.undo()
    engine.park("target")
    engine.unpark("target")
    failed, read = stats["kvflash_reading_failures"], stats["kvflash_read_tokens"]
    assert collect(engine.submit(Request("b", tokens_of(900), 40))).end.error is None
    assert engine.stats()["kvflash_reading_failures"] == failed
    assert engine.stats()["kvflash_read_tokens"] > read


def test_what_fits_its_budget_is_not_read(start, collect):
    engine, _ = start()
    assert len(collect(engine.submit(Request("a", tokens_of(300), 5))).tokens) == 5
    assert engine.stats()["kvflash_read_tokens"] == 0


class Wants:
    """A policy of a plugin that wants one chunk, and once has no opinion."""

    def __init__(self, chunk):
        self.chunk, self.rounds = chunk, 0

    @hookimpl
    def score_chunks(self, query):
        self.rounds += 1
        if self.rounds == 1:
            return None
        return Scores(torch.eye(query.chunks)[self.chunk])


def test_policies_are_asked_first_and_what_they_do_not_score_is_read(start, collect, paged):
    policy = Wants(5)
    loaded, _tokenizer = paged
    hooks = loaded.hooks.with_policies([HookProvider("policy of the test", policy)])
    engine, reader = start(model=replace(loaded, hooks=hooks))
    answers = []
    launch = reader.launch

    def watched(planned):
        answers.append(planned.is_last)
        return launch(planned)

    reader.launch = watched
    outcome = collect(engine.submit(Request("a", tokens_of(900), 60)))
    assert len(outcome.tokens) == 60
    assert policy.rounds >= 3
    assert answers.count(True) == 1, "only the round that the policy left"


def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing(start, monkeypatch):
    engine, reader = start()
    waiting, launch = threading.Event(), reader.launch

    def watched(planned):
        if planned.is_last:
            engine.cancel("a")
            waiting.set()
        return launch(planned)

    monkeypatch.setattr(reader, "launch", watched)
    events = list(engine.submit(Request("a", tokens_of(900), 400)))
    assert waiting.is_set()
    assert events[-1].reason.value == "cancelled"


def test_a_request_that_was_preempted_while_it_was_read_goes_on(
    registry, cases, settings, paged, collect
):
    loaded, tokenizer = paged
    request = Request("a", tokens_of(1000), 120, priority=1)

    def opened():
        own = settings(slots=1)
        reader = PromptScorer.open(cases / "qwen35.gguf", own, registry, chunks=True)
        readers = Readers(chunks=reader, start=start_reading(tokenizer, reader))
        limits = SchedulerLimits(
            slots=1, context=CONTEXT, step_tokens=1024, slice=512, preempt=True
        )
        return Engine(loaded, limits, readers=readers)

    with opened() as engine:
        alone = collect(engine.submit(request)).tokens
    with opened() as engine:
        seen, first, ended = [], threading.Event(), threading.Event()

        def listen(event):
            seen.extend(getattr(event, "tokens", ()))
            first.set()
            if hasattr(event, "reason"):
                ended.set()

        engine.submit(request, listen)
        assert first.wait(60)
        collect(engine.submit(Request("b", tokens_of(900, 2), 5, priority=0)))
        assert ended.wait(60)
        assert engine.stats()["preemptions"] == 1
        assert seen == alone
        engine.close()
        engine.check_integrity()


@pytest.mark.parametrize("name", ["laguna", "qwen35moe"])
def test_a_second_model_neither_reads_nor_writes_the_profile_of_experts(
    registry, cases, settings, tmp_path, name
):
    """The file has the fingerprint of the model that answers, and its rows alone."""
    path = tmp_path / "profile.json"
    values = settings(expert_budget="30%", expert_profile=path)
    target = load_model(cases / "laguna.gguf", values, registry)
    tokenizer = open_text(cases / "laguna.gguf", values, registry)[0]
    planned = target.source.ready.experts
    planned.profile.add([[0] * count for count in planned.sizes.layers], 1000)
    planned.profile.save()
    reader = PromptScorer.open(cases / f"{name}.gguf", values, registry, chunks=True)
    assert reader.loaded.experts is None
    readers = Readers(chunks=reader, start=start_reading(tokenizer, reader))
    limits = SchedulerLimits(slots=1, context=CONTEXT, step_tokens=512, slice=256)
    with Engine(target, limits, readers=readers) as engine:
        for _ in engine.submit(Request("a", tokens_of(BUDGET + 60), 20)):
            pass
        assert engine.stats()["kvflash_read_tokens"] > BUDGET
        counted = sum(map(sum, engine.expert_use().values()))
    reader.close()
    rows = counted // len(target.experts.layers) // planned.top_k
    found = json.loads(path.read_text())
    assert found["fingerprint"] == planned.profile.fingerprint
    assert found["tokens"] == 1000 + rows
    assert sum(map(sum, found["counts"])) == counted


def test_one_file_that_scores_prompts_and_chunks_is_loaded_once(
    registry, cases, collect, monkeypatch
):
    """Its weights serve both; each has state of its own. So too after parking, which frees them,
    and where they are planned only."""
    read, load = [], loading.load_weights

    def counted(*arguments, **options):
        read.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(loading, "load_weights", counted)
    one, other = cases / "qwen35.gguf", cases / "gemma4.gguf"
    values = {"device": "cpu", "dtype": "f32", "slots": 2, "context": CONTEXT, "draft": "off"}
    values |= {"prefill_compression_drafter": one, "prefill_compression": "auto"}
    values |= {"kvflash": BUDGET, "kvflash_policy": "drafter", "kvflash_burst": BURST}
    prompt, settings = tokens_of(900), load_settings(**values, kvflash_drafter=one)
    for file, count in ((one, 2), (other, 3)):  # with the model that answers
        read.clear()
        wanted = settings.model_copy(update={"kvflash_drafter": file})
        with Runtime.open(one, wanted, registry) as runtime:
            assert len(read) == count
            prompts, chunks = runtime.readers.prompts, runtime.readers.chunks
            assert prompts.state is not chunks.state
            request = Request("a", prompt, 30)
            before = collect(runtime.engine.submit(request)).tokens
            runtime.engine.park("target")
            assert prompts.loaded.model is chunks.loaded.model is None
            read.clear()
            runtime.engine.unpark("target")
            assert len(read) == count
            assert collect(runtime.engine.submit(request)).tokens == before
            stats = runtime.engine.stats()
            assert stats["kvflash_read_tokens"] > 2 * (len(prompt) - CHUNK_POSITIONS)
            assert stats["kvflash_reading_failures"] == 0
    weights = prompts.loaded.source.ready.memory.parts[WEIGHTS]
    both, _ = planned_beside(settings, registry)
    alone = {"prefill_compression": "off", "prefill_compression_drafter": None}
    only, _ = planned_beside(settings.model_copy(update=alone), registry)
    assert only["chunks"] - both["chunks"] == weights

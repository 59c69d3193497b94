"""The model that scores prompts, beside the one that answers."""

from __future__ import annotations

import queue

import numpy as np
import pytest
import torch

from kinfolk.engine.engine import Engine
from kinfolk.engine.prompt_scorer import PromptScorer
from kinfolk.engine.readers import Readers
from kinfolk.engine.runtime import scheduler_limits
from kinfolk.errors import EngineError, RequestError, SettingsError
from kinfolk.nn.prompt_reading import PromptReading
from kinfolk.sched.prompt_scoring import ScoringRequest
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings

NEAR = 1e-4
"""Of a share of attention: slices of other lengths are summed in another order."""


@pytest.fixture(scope="module")
def open_scorer(registry, cases):
    def start(name="qwen35", **settings):
        values = {"device": "cpu", "dtype": "f32", **settings}
        return PromptScorer.open(cases / f"{name}.gguf", load_settings(**values), registry)

    return start


@pytest.fixture
def scoring_engine(loaded, load, open_scorer):
    """``scoring_engine()``: engine and scorer; all is free once it is closed."""
    opened = []

    def start(model=None, scorer=None):
        model, scorer = model or loaded, scorer or open_scorer()
        settings = load_settings(device="cpu")
        limits = scheduler_limits(model, settings)
        opened.append((Engine(model, limits, readers=Readers(prompts=scorer)), scorer))
        return opened[-1]

    yield start
    for engine, scorer in opened:
        engine.close()
        engine.check_integrity()
        scorer.kv_cache.check_integrity()
        assert len(scorer.kv_cache.tables.free) == 1
        scorer.close()


def submit(engine, name, tokens):
    answer: queue.SimpleQueue = queue.SimpleQueue()
    engine.scoring.submit(ScoringRequest(name, tuple(tokens)), answer.put)
    return answer


def scores_of(engine, name, tokens):
    event = submit(engine, name, tokens).get(timeout=60)
    assert event.error is None, event.error
    return event.scores


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(10, 700, count).tolist()


@torch.inference_mode()
def at_once(scorer, tokens):
    """The scores of a text in one slice, or in slices of ``rows`` tokens, without an engine."""
    books = scorer.books()
    books.submit(ScoringRequest("alone", tuple(tokens)))
    while books.busy:
        books.commit(scorer.launch(books.plan()).collect())
    (event,) = books.take_events()
    return event.scores


def test_scores_beside_decoding_are_those_of_the_text_alone(scoring_engine, open_scorer, solo):
    engine, _ = scoring_engine()
    request = Request("a", tuple(ids(40, 3)), max_new=120)
    expected = solo(request)
    ticket = engine.submit(request)
    events = [next(iter(ticket))]
    texts = {str(n): ids(length, n) for n, length in enumerate((700, 9, 3, 513))}
    answers = {name: submit(engine, name, tokens) for name, tokens in texts.items()}
    found = {name: answer.get(timeout=60) for name, answer in answers.items()}
    for event in ticket:
        events.append(event)
    emitted = [token for event in events[:-1] for token in event.tokens]
    assert emitted == expected.tokens, "scoring changes no answer"
    alone = open_scorer()
    for name, tokens in texts.items():
        assert found[name].error is None
        scores = at_once(alone, tokens)
        assert found[name].scores.shape == (len(tokens),)
        assert np.allclose(found[name].scores, scores, rtol=NEAR, atol=NEAR / 100)
    assert engine.stats()["scored_texts"] == 4
    assert engine.stats()["scored_tokens"] == sum(map(len, texts.values()))
    alone.close()


@pytest.mark.parametrize("name", ["qwen35moe", "gemma4", "gemma4moe", "laguna"])
def test_a_model_of_any_family_scores(open_scorer, name):
    scorer = open_scorer(name)
    tokens = ids(600)
    with_slices = at_once(scorer, tokens)
    assert with_slices.shape == (600,)
    assert (with_slices > 0).all()
    # Each of the last rows gives shares of one in all, of which the largest is taken.
    assert with_slices.sum() >= 1 - NEAR
    again = at_once(scorer, tokens)
    assert np.array_equal(with_slices, again), "nothing is left of a text"
    scorer.close()


def test_a_model_that_looks_at_windows_only_is_refused(loaded):
    with pytest.raises(SettingsError, match="cannot score prompts"):
        PromptScorer(loaded, PromptReading(), tokenizer=None)


def test_what_is_too_long_or_unknown_is_refused_at_once(scoring_engine):
    engine, scorer = scoring_engine()
    with pytest.raises(RequestError, match="reads at most 4096"):
        submit(engine, "long", [10] * 4097)
    with pytest.raises(RequestError, match="token ids must be"):
        submit(engine, "other", [scorer.loaded.info.vocabulary])


def test_a_closed_engine_ends_texts(scoring_engine):
    engine, _ = scoring_engine()
    answers = [submit(engine, str(n), ids(3000, n)) for n in range(3)]
    engine.close()
    events = [answer.get(timeout=60) for answer in answers]
    assert all(event.error == "the engine has stopped" for event in events[1:])
    with pytest.raises(EngineError, match="stopped"):
        submit(engine, "late", ids(5))


def test_parking_the_target_parks_the_scorer(scoring_engine, load):
    engine, _ = scoring_engine(model=load())
    before = scores_of(engine, "a", ids(200))
    engine.park("target")
    event = submit(engine, "b", ids(200)).get(timeout=60)
    assert event.error == "the model that scores prompts is parked"
    engine.unpark("target")
    assert np.array_equal(scores_of(engine, "c", ids(200)), before)


def test_a_text_may_be_cancelled_while_it_is_read(scoring_engine):
    engine, _ = scoring_engine()
    first, second = (submit(engine, name, ids(2500)) for name in ("a", "b"))
    engine.scoring.cancel("a")
    engine.scoring.cancel("nobody")
    assert first.get(timeout=60).error == "it was cancelled"
    assert second.get(timeout=60).error is None

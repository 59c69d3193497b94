"""The engine does what a policy answers to a model's hooks."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

import kinfolk_qwen35.plugin
from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec
from kinfolk.errors import HookValueError
from kinfolk.registry import Registry
from kinfolk.sched.request import FinishReason, Request
from kinfolk.score_api import Scores
from kinfolk.spec.verify import verify
from kinfolk.verify_api import Kept


@pytest.fixture
def with_policy(load, monkeypatch):
    """``with_policy(create)``: the model, opened with the policy that ``create(info)`` makes."""

    def open_model(create, **settings):
        module = ModuleType("toy_policy")

        @hookimpl
        def register_policies():
            return [PolicySpec("mine", "toy_policy:create")]

        module.KINFOLK_API = (1, 0)
        module.register_policies = register_policies
        module.create = create
        monkeypatch.setitem(sys.modules, "toy_policy", module)
        registry = Registry.build({"qwen35": kinfolk_qwen35.plugin, "toy": module})
        return load(registry=registry, policy="mine", **settings)

    return open_model


class Verifier:
    """Calls ``decide(step, draft, sampling)`` and counts how often it is asked."""

    def __init__(self, decide):
        self.decide = decide
        self.asked = 0

    @hookimpl
    def verify(self, step, draft, sampling):
        self.asked += 1
        return self.decide(step, draft, sampling)


def only_the_root(step, draft, sampling):
    """Keep no draft, however right."""
    kept = verify(step, draft, sampling)
    path = torch.full_like(kept.path, -1)
    path[:, 0] = 0
    lanes = torch.arange(len(path))
    first = step.logits[step.rows[lanes, 0]].argmax(1)
    return Kept(path, torch.ones_like(kept.n_keep), first)


def test_a_policy_decides_how_much_of_a_draft_is_kept(
    engine, with_policy, text, solo, collect, prophet
):
    policy = Verifier(only_the_root)
    request = Request("a", tuple(text[:40]), 20)
    drafter = prophet([[*request.prompt, *solo(request).tokens]])
    model = with_policy(lambda info: policy)
    outcome = collect(engine(drafter, model=model, max_draft=6).submit(request))
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.usage.drafted > 0
    assert outcome.end.usage.accepted == 0
    assert policy.asked == 20


def test_a_policy_decides_which_token_follows(engine, with_policy, text, collect):
    def always_42(step, draft, sampling):
        kept = verify(step, draft, sampling)
        return Kept(kept.path, kept.n_keep, torch.full_like(kept.next, 42))

    model = with_policy(lambda info: Verifier(always_42))
    request = Request("a", tuple(text[:40]), 7)
    assert collect(engine(model=model).submit(request)).tokens == [42] * 7


def test_a_policy_may_leave_the_answer_to_the_core(engine, with_policy, text, solo, collect):
    policy = Verifier(lambda *_: None)
    request = Request("a", tuple(text[:40]), 9)
    outcome = collect(engine(model=with_policy(lambda info: policy)).submit(request))
    assert outcome.tokens == solo(request).tokens
    assert policy.asked == 9


@pytest.mark.parametrize(
    ("answer", "part"),
    [(lambda *_: [0], "is no kinfolk.verify_api.Kept"), (lambda *_: 1 / 0, "ZeroDivisionError")],
)
def test_a_policy_that_answers_nonsense_is_named_in_the_error(
    engine, with_policy, text, collect, answer, part
):
    running = engine(model=with_policy(lambda info: Verifier(answer)))
    end = collect(running.submit(Request("a", tuple(text[:9]), 3))).end
    assert end.reason is FinishReason.ERROR
    assert "policy 'mine' of plugin 'toy'" in end.error
    assert part in end.error


def test_a_policy_can_bring_the_step_function(engine, with_policy, text, solo, collect):
    shapes = []

    class Builder:
        @hookimpl
        def build_graph(self, model, shape):
            shapes.append((shape.kind, shape.rows, shape.sequences))
            return model.forward

    request = Request("a", tuple(text[:40]), 5)
    running = engine(model=with_policy(lambda info: Builder()))
    assert collect(running.submit(request)).tokens == solo(request).tokens
    assert shapes == [("prefill", 32, 1), ("prefill", 8, 1), ("decode", 1, 1)]


# -- scores of chunks -----------------------------------------------------------------------------


class Scorer:
    """Scores chunks by ``answer(query)`` and counts how often it is asked."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = 0

    @hookimpl
    def score_chunks(self, query):
        self.asked += 1
        return self.answer(query)


def test_a_policy_chooses_the_chunks_of_long_sequences(with_policy, engine, text, collect):
    """It is asked once for a try when the model opens, and by the requests after that."""
    scorer = Scorer(lambda query: Scores(torch.arange(query.chunks, 0, -1, dtype=torch.float32)))
    settings = {"kvflash": 512, "kvflash_burst": 1, "context": 1024, "slots": 1}
    loaded = with_policy(lambda info: scorer, **settings)
    assert scorer.asked == 1
    assert loaded.residency.scorers == ("policy 'mine' of plugin 'toy'", "qk")
    running = engine(model=loaded, context=1024, slots=1, slice=64)
    end = collect(running.submit(Request("a", tuple(text * 5)[:800], 100))).end
    assert end.reason is FinishReason.LENGTH
    assert not end.usage.exact
    assert scorer.asked == 1 + running.stats()["kvflash_selections"] == 3
    assert running.stats()["kvflash_recalls"] > 0


def test_a_policy_with_a_wrong_number_of_scores_is_refused_at_once(with_policy):
    scorer = Scorer(lambda query: Scores(torch.zeros(3)))
    with pytest.raises(HookValueError, match=r"score_chunks: 3 scores for 2 chunks.*'mine'"):
        with_policy(lambda info: scorer, kvflash=512, kvflash_burst=1, context=1024)

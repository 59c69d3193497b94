"""Answers that are given to the engine, and what the model would have chosen in their places."""

from __future__ import annotations

import importlib
import random
import sys
from dataclasses import replace

import pytest

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.hooks import HookProvider
from kinfolk.registry import Registry
from kinfolk.sched.events import Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings

PROMPT, ANSWER, CONTEXT = 790, 40, 1024
POOLED = {"kvflash": (1 + 4 + 2 + 3) * 64, "kvflash_burst": 2, "kvflash_tau": 16}
COUNTED = ("kvflash_selections", "kvflash_recalls", "kvflash_evictions")


def drawn(count, seed):
    source = random.Random(seed)
    return tuple(source.randrange(700) for _ in range(count))


@pytest.fixture(scope="module")
def forced(repo):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repo / "benchmarks"))
        yield importlib.import_module("forced")
        del sys.modules["forced"]


@pytest.fixture
def run(forced, cases):
    """``run(given)``: tokens that were emitted, those that were chosen in their places, and how
    often chunks came and went; without an answer that is given, the model's own."""

    def start(given=None, **settings):
        options = {"device": "cpu", "dtype": "f32", "context": CONTEXT, "slots": 1, "draft": "off"}
        options |= {"checkpoints": 0, **settings}
        registry = Registry.discover(load_settings())
        loaded = load_model(cases / "qwen35.gguf", load_settings(**options), registry)
        policy = forced.Forced()
        hooks = loaded.hooks.with_policies([HookProvider("policy of the test", policy)])
        limits = SchedulerLimits(
            slots=1, context=CONTEXT, step_tokens=1024, slice=512, vocabulary=loaded.info.vocabulary
        )
        prompt, emitted = drawn(PROMPT, 1), []
        with Engine(replace(loaded, hooks=hooks), limits) as engine:
            if given is not None:
                policy.text([*prompt, *given], loaded.device)
            for event in engine.submit(Request("a", prompt, ANSWER)):
                if isinstance(event, Finished):
                    assert event.error is None
                    assert event.usage.exact == ("kvflash" not in settings)
                else:
                    emitted += event.tokens
            stats = engine.stats()
        loaded.file.close()
        return emitted, policy.chosen()[PROMPT:], [stats[name] for name in COUNTED]

    return start


def test_what_is_given_is_emitted_and_what_a_plain_forward_says_is_chosen(run, cases):
    given = drawn(ANSWER, 2)
    emitted, chosen, _ = run(given)
    assert tuple(emitted) == given
    settings = load_settings(device="cpu", dtype="f32", context=CONTEXT, slots=1)
    registry = Registry.discover(load_settings())
    loaded = load_model(cases / "qwen35.gguf", settings, registry)
    tokens = [*drawn(PROMPT, 1), *given]
    plain = [token for rows in logits(loaded, tokens) for token in rows.argmax(1).tolist()]
    loaded.file.close()
    assert chosen == plain[PROMPT - 1 : -1]


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_an_answer_that_is_the_models_own_changes_nothing_while_chunks_come_and_go(run, graphs):
    """Nor do the last rows of the prompt, which run once before they are read."""
    own, nothing, moves = run(graphs=graphs, **POOLED)
    assert nothing == []
    assert min(moves) > 0
    emitted, chosen, again = run(own, graphs=graphs, **POOLED)
    assert emitted == chosen == own
    assert again == moves

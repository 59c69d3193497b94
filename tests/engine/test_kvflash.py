"""Sequences that are longer than their budget: what they see, and what becomes of the rest."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from kinfolk import hookimpl
from kinfolk.engine.loading import load_model
from kinfolk.errors import CapacityError, ContextLengthExceeded, SettingsError
from kinfolk.hooks import HookProvider
from kinfolk.sched.request import FinishReason, Request
from kinfolk.score_api import KEEP, Scores
from kinfolk.settings import load_settings
from kinfolk.types import CHUNK_POSITIONS

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
BURST = 2
BUDGET = (1 + 4 + BURST + 3) * CHUNK_POSITIONS
CONTEXT = 3072


@pytest.fixture(scope="session")
def open_family(registry, cases):
    """``open_family(name, scorer=None, **settings)``: a small model of a family."""

    def open_model(name="qwen35", scorer=None, **settings):
        options = {
            "device": "cpu",
            "dtype": "f32",
            "context": CONTEXT,
            "slots": 4,
            "kvflash": BUDGET,
            "kvflash_burst": BURST,
            "draft": "off",
            **settings,
        }
        loaded = load_model(cases / f"{name}.gguf", load_settings(**options), registry)
        return loaded if scorer is None else with_scorer(loaded, scorer)

    return open_model


def with_scorer(loaded, scorer):
    from dataclasses import replace

    hooks = loaded.hooks.with_policies([HookProvider("policy of the test", scorer)])
    rules = replace(loaded.residency, scorers=hooks.asked("score_chunks"))
    return replace(loaded, hooks=hooks, residency=rules)


class Wants:
    """The oracle: chunks that it is told to keep score 1, the others 0."""

    def __init__(self, *chunks, answer=None):
        self.chunks, self.answer, self.queries = set(chunks), answer, []

    @hookimpl
    def score_chunks(self, query):
        self.queries.append(query)
        if self.answer is not None:
            return self.answer(query)
        return Scores(torch.tensor([float(n in self.chunks) for n in range(query.chunks)]))


@pytest.fixture
def start(engine):
    """``start(loaded, **limits)``: an engine for long contexts."""

    def run(loaded, drafter=None, **limits):
        values = {"slots": 4, "context": CONTEXT, "step_tokens": 1024, "slice": 512, **limits}
        return engine(drafter, loaded, **values)

    return run


def tokens_of(loaded, count, seed=0):
    source = random.Random(seed)
    return tuple(source.randrange(loaded.info.vocabulary) for _ in range(count))


def residents(running):
    """The chunks of the only sequence with a slot that are on the device."""
    (sequence,) = [each for each in running._scheduler.alive.values() if each.lease]
    return [n for n, _ in running._kv_cache.tables.table(sequence.lease, 0)]


# -- equality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_with_all_brought_back_before_each_step_no_logit_differs(
    open_family, driver_of, family, graphs
):
    """Chunks leave and come back to other blocks before every step: logits are equal bit for bit."""
    loaded = open_family(family, kvflash="off", context=1024)
    tokens = list(tokens_of(loaded, 400))
    source = random.Random(1)
    plain, paged = (driver_of(loaded, replays=graphs == "on") for _ in range(2))
    still, moved = plain.open(700), paged.open(700, paged=True)
    tables, pool = paged.kv_cache.tables, loaded.plan.windows.index(None)
    for drive, lease in ((plain, still), (paged, moved)):
        drive.feed({lease: tokens[:300]}, rows=150)
    for token in tokens[300:]:
        full = range(tables.length(moved) // CHUNK_POSITIONS)
        gone = source.sample(full, source.randint(1, len(full)))
        for chunk in gone:
            tables.evict(moved, chunk, pool)
        paged.apply()
        paged.shuffle(source.randrange(99))
        for chunk in gone:
            tables.fetch(moved, chunk, pool)
        paged.apply()
        for chunk in gone:
            tables.recall(moved, chunk, pool)
        ours, theirs = (
            drive.feed({lease: [token]})[lease] for drive, lease in ((paged, moved), (plain, still))
        )
        assert torch.equal(ours, theirs)


@pytest.fixture
def driver_of():
    from kinfolk.testing.driver import Driver

    return Driver


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_differs_while_nothing_has_left(open_family, start, collect, family):
    """A paged sequence whose chunks all fit emits the tokens and log-probabilities of a full one."""
    from kinfolk.sched.request import Sampling

    outcomes = []
    for kvflash in (BUDGET, "off"):
        loaded = open_family(family, kvflash=kvflash)
        prompt = tokens_of(loaded, (BUDGET // CHUNK_POSITIONS - BURST - 2) * CHUNK_POSITIONS - 60)
        request = Request("a", prompt, 900, Sampling(logprobs=2), grant=50)
        running = start(loaded, slice=128)
        got = []
        import threading

        held = threading.Event()
        ticket = running.submit(request, got.append, lambda _: held.set())
        assert held.wait(60)
        ticket.cancel()
        outcomes.append([e for e in got if hasattr(e, "tokens")])
        counted = running.stats()
        assert counted["kvflash_evictions"] == 0
        assert counted["saves"] > 0 or kvflash == "off"
    assert outcomes[0] == outcomes[1]

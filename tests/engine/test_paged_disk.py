"""Prefixes of sequences that are longer than their budget, on the disk: after a restart they are
gone on from as if there had been none, by those who are paged and scored in the same way."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
import torch

from kinfolk import hookimpl
from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.hooks import HookProvider
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.score_api import Scores
from kinfolk.settings import load_settings
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_admin import PrefixFolder
from kinfolk.types import CHUNK_POSITIONS

BURST = 2
BUDGET = (1 + 4 + BURST + 3) * CHUNK_POSITIONS
CONTEXT = 2048
LARGE = 1 << 30


class Favours:
    """A scorer that keeps some chunks, and counts how often it is asked."""

    def __init__(self, *chunks):
        self.chunks, self.seen = set(chunks), []

    @hookimpl
    def score_chunks(self, query):
        self.seen.append((query.reason, tuple(query.resident.tolist())))
        return Scores(torch.tensor([float(n in self.chunks) for n in range(query.chunks)]))


@pytest.fixture(scope="module")
def model(registry, cases):
    """``model(family, scorer=None, **settings)``: a small model with a budget."""

    def load(family="qwen35", scorer=None, **settings):
        options = {
            "device": "cpu",
            "dtype": "f32",
            "context": CONTEXT,
            "slots": 1,
            "checkpoints": 4,
            "cache_memory": 0.25,
            "kvflash": BUDGET,
            "kvflash_burst": BURST,
            "kvflash_policy": "lru",
            "kvflash_tau": 16,
            "draft": "off",
            **settings,
        }
        loaded = load_model(cases / f"{family}.gguf", load_settings(**options), registry)
        if scorer is None:
            return loaded
        hooks = loaded.hooks.with_policies([HookProvider("policy of the test", scorer)])
        rules = replace(loaded.residency, scorers=hooks.asked("score_chunks"))
        return replace(loaded, hooks=hooks, residency=rules)

    return load


@pytest.fixture
def run(tmp_path, collect):
    """``run(loaded, *requests)``: their outcomes and the counters of a new process on the one disk
    of the test, which has written all when it ends."""

    def start(loaded, *requests, slice_rows=512):
        cache = DiskCache.open(tmp_path / "prefix", salt_record(loaded, slice_rows), LARGE)
        limits = SchedulerLimits(
            slots=1,
            context=CONTEXT,
            step_tokens=1024,
            slice=slice_rows,
            vocabulary=loaded.info.vocabulary,
        )
        engine = Engine(loaded, limits, disk=cache)
        try:
            outcomes = [collect(engine.submit(each)) for each in requests]
            stats = engine.stats()
        finally:
            engine.close()
        engine.check_integrity()
        return outcomes, stats

    return start


def tokens_of(count, seed=0):
    source = random.Random(seed)
    return tuple(source.randrange(700) for _ in range(count))


def said(prompt, outcome, more):
    return (*prompt, *outcome.tokens, *more)


PROMPT, MORE = tokens_of(1100), tokens_of(50, 5)


@pytest.mark.parametrize(
    "family", ["qwen35", "gemma4", pytest.param("laguna", marks=pytest.mark.long)]
)
def test_a_chat_longer_than_its_budget_goes_on_after_a_restart(model, run, family):
    loaded, kept = model(family), model(family, kvflash_tau=17)
    first = Request("a", PROMPT, 12, keep=True)
    (whole,), _ = run(loaded, first)
    second = Request("b", said(PROMPT, whole, MORE), 12)
    # The second of these has its own entries, so in its process nothing comes from the disk.
    (_, expected), in_memory = run(kept, first, second)
    assert expected.end.usage.reused_from == "host"
    (found,), stats = run(loaded, second)
    assert found.end.usage.reused_from == "disk"
    assert found.end.usage.reused == expected.end.usage.reused == len(PROMPT) + 11
    assert not found.end.usage.exact
    assert found.tokens == expected.tokens
    assert (stats["disk_fetches"], in_memory["disk_fetches"]) == (1, 0)


def test_what_was_seen_and_its_scores_come_back_from_the_disk(model, run):
    """The first choice of the second process has the chunks that the first one had chosen."""
    budget = BUDGET + 2 * CHUNK_POSITIONS
    first, other = Favours(3, 5), Favours()
    (whole,), _ = run(model(scorer=first, kvflash=budget), Request("a", PROMPT, 20, keep=True))
    run(model(scorer=other, kvflash=budget), Request("b", said(PROMPT, whole, MORE), 2))
    _, resident = other.seen[0]
    assert not all(resident)
    assert resident[3]
    assert resident[5]


def test_nobody_else_starts_from_what_missed_something(model, run):
    """Neither those who are paged or scored otherwise, nor those who fit their budget."""
    (whole,), _ = run(model(), Request("a", PROMPT, 12, keep=True))
    again = Request("b", said(PROMPT, whole, MORE), 2)
    for changed in (
        {"kvflash": BUDGET + CHUNK_POSITIONS},
        {"kvflash_tau": 32},
        {"kvflash_burst": 1},
        {"kvflash_policy": "qk"},
    ):
        (found,), _ = run(model(**changed), again)
        # What was read before anything had left may be gone on from.
        assert found.end.usage.reused <= BUDGET, changed
        assert not found.end.usage.exact
    for exact in ({"kvflash": "off"}, {"kvflash": 1536}):
        (found,), _ = run(model(**exact), again)
        assert found.end.usage.reused <= BUDGET, exact
        assert found.end.usage.exact


def test_scores_of_another_file_are_another_salt(model, cases):
    """A drafter that is exchanged for another one under the same name scores otherwise."""
    salts = {
        model(kvflash_policy="drafter", kvflash_drafter=cases / f"{name}.gguf").residency.salt
        for name in ("qwen35", "gemma4")
    }
    assert len(salts) == 2
    again = model(kvflash_policy="drafter", kvflash_drafter=cases / "qwen35.gguf")
    assert again.residency.salt in salts


def test_the_layers_that_score_are_a_part_of_the_salt(model):
    scored = [model("laguna", kvflash_policy="qk", kvflash_layers=count) for count in (1, 2)]
    salts = {each.residency.salt for each in scored}
    assert len(salts) == 2


def test_points_of_paged_sequences_are_verified_and_say_what_they_are(model, run, tmp_path):
    loaded = model()
    run(loaded, Request("a", PROMPT, 12, keep=True))
    folder = PrefixFolder(tmp_path / "prefix")
    assert folder.check(lambda *_: None) == []
    (shown,) = folder.models()
    pagings = [point.info.paging for point in shown.points]
    assert pagings.count(loaded.residency.salt) >= 1


def test_a_damaged_point_of_a_paged_sequence_costs_a_cold_start(model, run, tmp_path, caplog):
    loaded = model()
    (whole,), _ = run(loaded, Request("a", PROMPT, 12, keep=True))
    for path in tmp_path.rglob("points/*"):
        content = bytearray(path.read_bytes())
        content[-3] ^= 1  # in what the sequence saw, the last section
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        (found,), stats = run(loaded, Request("b", said(PROMPT, whole, MORE), 2))
    assert found.end.usage.reused == 0
    assert found.end.error is None
    assert stats["disk_drops_lost"] == 1
    assert any("is dropped" in each.getMessage() for each in caplog.records)

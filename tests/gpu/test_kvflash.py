"""Paged sequences on the device: captured steps, copies beside them, and only the usual wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kinfolk import hookimpl
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.engine.pinning import refuse_unpinnable, try_to_pin
from kinfolk.hooks import HookProvider
from kinfolk.registry import Registry
from kinfolk.sched.events import Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.score_api import Scores
from kinfolk.settings import load_settings
from kinfolk.state.copies import CudaStreams
from kinfolk.state.host_rows import SLAB_BYTES

pytestmark = pytest.mark.gpu

CYCLES = 300_000
"""Of the device's clock, some hundred microseconds: longer than a copy here takes."""

BUDGET, CONTEXT = 640, 2048


class Random:
    """Scores that depend on the length alone, on the device."""

    @hookimpl
    def score_chunks(self, query):
        generator = torch.Generator().manual_seed(query.length)
        values = torch.rand(query.chunks, generator=generator).pin_memory()
        return Scores(values.to("cuda", non_blocking=True))


@pytest.fixture(params=["qwen35", "gemma4"])
def loaded(request, cases):
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(
        device="cuda",
        context=CONTEXT,
        slots=4,
        kvflash=BUDGET,
        kvflash_burst=2,
        kvflash_tau=16,
        kvflash_host=0.5,
        kvflash_policy="lru",
        draft="off",
    )
    loaded = load_model(cases / f"{request.param}.gguf", settings, registry)
    hooks = loaded.hooks.with_policies([HookProvider("policy of the test", Random())])
    rules = replace(loaded.residency, scorers=hooks.asked("score_chunks"))
    return replace(loaded, hooks=hooks, residency=rules)


def answers(loaded, requests, late=None, monkeypatch=None):
    """The tokens of requests that are submitted together, and what was counted."""
    if late is not None:
        monkeypatch.setattr(CudaStreams, f"on_{late}", sleeping(getattr(CudaStreams, f"on_{late}")))
    limits = SchedulerLimits(
        slots=4,
        context=CONTEXT,
        step_tokens=512,
        slice=256,
        vocabulary=loaded.info.vocabulary,
    )
    with Engine(loaded, limits) as engine:
        tickets = [engine.submit(each) for each in requests]
        found = []
        for ticket in tickets:
            events = list(ticket)
            assert isinstance(events[-1], Finished)
            assert events[-1].error is None
            found.append([token for event in events[:-1] for token in event.tokens])
        stats = engine.stats()
    engine.check_integrity()
    return found, stats


def sleeping(action):
    def slowly(self, todo):
        def late():
            torch.cuda._sleep(CYCLES)
            return todo()

        return action(self, late)

    return slowly


def requests_of(loaded, count):
    source = random.Random(5)
    return [
        Request(
            str(number),
            tuple(source.randrange(loaded.info.vocabulary) for _ in range(1000 + 130 * number)),
            60,
        )
        for number in range(count)
    ]


def test_pinning_is_tried_and_let_go():
    """More than once the same memory: what was tried is not kept."""
    for _ in range(3):
        refuse_unpinnable(4 * SLAB_BYTES, 0, try_to_pin)


@pytest.mark.parametrize("late", ["main", "copies"])
def test_tokens_are_the_same_however_late_copies_or_steps_are(loaded, monkeypatch, late):
    requests = requests_of(loaded, 1)
    found, stats = answers(loaded, requests)
    assert stats["kvflash_recalls"] > 0
    assert answers(loaded, requests, late, monkeypatch)[0] == found


def test_a_hundred_evictions_capture_and_wait_for_nothing_more(loaded):
    request = requests_of(loaded, 1)[0]
    _, once = answers(loaded, [request])
    again = [replace(request, id=str(number)) for number in range(9)]
    _, stats = answers(loaded, again)
    assert stats["kvflash_evictions"] >= 100
    assert stats["waits"] == stats["steps"]
    assert stats["eager_steps"] == once["eager_steps"] == 0

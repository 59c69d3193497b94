"""A running request gives its place to an urgent one and goes on from host memory."""

from __future__ import annotations

import threading

import pytest

from kinfolk.engine.loading import load_model
from kinfolk.errors import SettingsError
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

SAMPLINGS = (Sampling(), Sampling(temperature=0.9, repetition_penalty=1.3, seed=5))


def opened(registry, cases, family, **settings):
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 8, "cache_memory": 0.1}
    return load_model(cases / f"{family}.gguf", load_settings(**{**options, **settings}), registry)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "penalised"])
@pytest.mark.parametrize("family", ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"])
def test_its_tokens_are_those_that_it_emits_alone(
    registry, cases, text, engine, collect, family, sampling
):
    """It is preempted twice, and comes back to the same slot."""
    loaded = opened(registry, cases, family)
    known = tuple(token % loaded.info.vocabulary for token in text)
    request = Request("a", known[:70], 16, sampling, priority=1)
    alone = collect(engine(model=loaded, slots=1).submit(request))
    running = engine(model=loaded, slots=1, preempt=True)
    urgent, events, over = [], [], threading.Event()

    def listen(event):
        events.append(event)
        if isinstance(event, Emitted) and len(urgent) < 2 and len(events) in (3, 7):
            name = f"urgent {len(urgent)}"
            urgent.append(running.submit(Request(name, known[80:100], 3, sampling)))
        if isinstance(event, Finished):
            over.set()

    running.submit(request, listen)
    assert over.wait(120)
    for ticket in urgent:
        assert collect(ticket).end.error is None
    found = [token for event in events if isinstance(event, Emitted) for token in event.tokens]
    assert running.stats()["preemptions"] == 2
    assert found == alone.tokens


def test_without_host_memory_it_is_refused(registry, cases):
    from kinfolk.engine.runtime import scheduler_limits

    settings = load_settings(
        device="cpu", dtype="f32", context=512, slots=2, cache_memory=0, preempt=True
    )
    loaded = load_model(cases / "qwen35.gguf", settings, registry)
    with pytest.raises(SettingsError, match="--cache-memory"):
        scheduler_limits(loaded, settings)

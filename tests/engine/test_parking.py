"""Parking gives the device's memory back, and unparking goes on where it was."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from kinfolk.engine.loading import load_model
from kinfolk.errors import EngineError
from kinfolk.sched.drafts import MAX_FAILURES
from kinfolk.sched.events import Emitted, Finished, Held
from kinfolk.sched.request import FinishReason, Request
from kinfolk.settings import load_settings

FAMILIES = ("qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna")


@pytest.fixture
def fresh(registry, cases):
    """``fresh(family, **settings)``: a model of its own, which may lose its weights."""

    def open_model(family="qwen35", **settings):
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 8, **settings}
        return load_model(cases / f"{family}.gguf", load_settings(**options), registry)

    return open_model


def living_tensors():
    gc.collect()
    return {id(each): weakref.ref(each) for each in gc.get_objects() if type(each) is torch.Tensor}


def test_a_parked_model_holds_no_tensor(engine, fresh, text):
    """Neither weights nor state: nothing large is left of what loading and running made."""
    before = living_tensors()
    running = engine(model=fresh(checkpoints=2, cache_memory=0))
    list(running.submit(Request("a", tuple(text[:40]), 4, checkpoints=(32,), keep=True)))

    def large():
        made = [ref() for key, ref in living_tensors().items() if key not in before]
        return [each.shape for each in made if each is not None and each.numel() > 2000]

    assert len(large()) > 20
    running.park()
    assert running.parked == {"target", "draft"}
    assert large() == []
    assert running.stats()["parked"] == 1
    with pytest.raises(EngineError, match="parked"):
        running.loaded.model.forward(None, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_goes_on_after_parking(engine, fresh, text, family, collect):
    """What was kept is in host memory, and its tokens are not computed again."""
    loaded = fresh(family, checkpoints=2, cache_memory=0.1)
    known = tuple(token % loaded.info.vocabulary for token in text)
    plain, running = engine(model=loaded), engine(model=loaded)
    first = Request("a", known[:70], 4, checkpoints=(64,))
    second = Request("b", (*known[:66], *known[90:99]), 6)
    before = collect(plain.submit(first)), collect(plain.submit(second))
    found = [collect(running.submit(first))]
    running.park("target")
    running.unpark("target")
    found.append(collect(running.submit(second)))
    assert [each.tokens for each in found] == [each.tokens for each in before]
    usage = found[1].end.usage
    assert (usage.reused, usage.reused_from) == (64, "host")


def test_a_chat_longer_than_its_budget_goes_on_after_parking(engine, fresh, text, collect):
    """Its chunks and what it saw of them are in host memory, which parking does not free."""
    paging = {"kvflash": 512, "kvflash_burst": 1, "kvflash_host": 0.1, "context": 1024}
    loaded = fresh(checkpoints=2, cache_memory=0.1, slots=2, **paging)
    known = tuple((place * 7919 + 13) % loaded.info.vocabulary for place in range(800))
    first = Request("a", known[:700], 4, keep=True, checkpoints=(690,))
    second = Request("b", (*known[:690], *known[700:720]), 6)
    limits = {"model": loaded, "context": 1024, "slots": 2}
    plain, running = engine(**limits), engine(**limits)
    before = collect(plain.submit(first)), collect(plain.submit(second))
    found = [collect(running.submit(first))]
    running.park("target")
    assert running.stats()["saved_rows"] > 0
    running.unpark("target")
    found.append(collect(running.submit(second)))
    assert [each.tokens for each in found] == [each.tokens for each in before]
    usage = found[1].end.usage
    assert (usage.reused, usage.reused_from, usage.exact) == (690, "host", False)


def test_without_host_memory_kept_states_are_dropped(engine, fresh, text, collect):
    running = engine(model=fresh(checkpoints=2, cache_memory=0))
    request = Request("a", tuple(text[:70]), 4, checkpoints=(64,))
    first = collect(running.submit(request))
    running.park()
    running.unpark()
    again = collect(running.submit(request))
    assert (again.tokens, again.end.usage.reused) == (first.tokens, 0)


def test_live_requests_are_named_and_run_on(engine, fresh, text, collect):
    running = engine(model=fresh())
    request = Request("a", tuple(text[:9]), 6, grant=2)
    paused = threading.Event()
    events = []
    ticket = running.submit(request, events.append, lambda pause: paused.set())
    paused.wait(60)
    with pytest.raises(EngineError, match="requests a have not ended"):
        running.park()
    assert not running.parked
    running.park(drain=True)
    assert isinstance(events[-1], Finished)
    assert sum(len(event.tokens) for event in events if isinstance(event, Emitted)) == 6
    assert ticket.request_id == "a"
    assert running.parked


def test_draining_leaves_the_grants_of_those_that_wait_alone(engine, fresh, text):
    running = engine(model=fresh(), slots=1)
    first, waits = threading.Event(), threading.Event()
    running.submit(Request("a", tuple(text[:9]), 6, grant=1), print, lambda pause: first.set())
    assert first.wait(60)
    events = []
    running.submit(
        Request("w", tuple(text[:9]), 12, grant=2),
        events.append,
        lambda pause: isinstance(pause, Held) and waits.set(),
    )
    running.park(drain=True)
    running.unpark()
    assert waits.wait(60)
    assert sum(len(event.tokens) for event in events) == 2


def test_requests_that_come_meanwhile_run_after_unparking(engine, fresh, text, collect, solo):
    running = engine(model=fresh(context=512))
    running.park()
    requests = [Request(str(i), tuple(text[: 9 + i]), 4) for i in range(3)]
    tickets = [running.submit(request) for request in requests]
    assert len(running.view()) == running.stats()["waiting"] == 3
    running.cancel("1")
    assert collect(tickets[1]).end.reason is FinishReason.CANCELLED
    running.unpark()
    for i in (0, 2):
        assert collect(tickets[i]).tokens == solo(requests[i]).tokens


def test_an_unpark_that_fails_leaves_it_parked_and_leaks_nothing(
    engine, fresh, text, collect, monkeypatch
):
    loaded = fresh()
    running = engine(model=loaded)
    expected = collect(running.submit(Request("a", tuple(text[:9]), 4))).tokens
    running.park()
    made = []

    def failing(source, progress=None, *, drafter=True):
        made.append(weakref.ref(torch.zeros(3)))
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(type(loaded.source), "load", failing)
        for _ in range(2):
            with pytest.raises(EngineError, match=r"cannot unpark all: .*Input/output error"):
                running.unpark()
            assert running.parked
            assert all(pool.data.numel() == 0 for pool in running._runner.state.pools)
    assert [ref for ref in made if ref() is not None] == []
    running.unpark()
    assert collect(running.submit(Request("b", tuple(text[:9]), 4))).tokens == expected


def test_a_parked_engine_closes(engine, fresh, text, collect):
    running = engine(model=fresh())
    running.park()
    ticket = running.submit(Request("a", tuple(text[:9]), 4))
    running.close()
    assert collect(ticket).end.reason is FinishReason.CANCELLED


def test_a_drafter_is_parked_by_itself(engine, text, collect, drafted, solo):
    request = Request("a", tuple(text[:11]), 12)
    expected = solo(request).tokens
    running = engine(model=drafted([[*text[:11], *expected]]))
    first = collect(running.submit(request))
    running.park("draft")
    second = collect(running.submit(request))
    running.unpark("draft")
    third = collect(running.submit(request))
    assert first.tokens == second.tokens == third.tokens == expected
    assert second.end.usage.drafted == 0
    assert min(first.end.usage.drafted, third.end.usage.drafted) > 0


@pytest.mark.parametrize("part", ["draft", "target", "all"])
@pytest.mark.parametrize("method", ["draft", "extend"])
def test_a_drafter_that_was_given_up_is_asked_again_once_it_is_loaded_again(
    engine, text, collect, drafted, solo, part, method, monkeypatch
):
    request = Request("a", tuple(text[:11]), 20)
    expected = solo(request).tokens
    running = engine(model=drafted([[*text[:11], *expected]]))

    def fails(*arguments):
        raise RuntimeError("no idea")

    with monkeypatch.context() as patch:
        patch.setattr(running.loaded.drafter.drafter, method, fails)
        given_up = [collect(running.submit(request)) for _ in range(2)]
    assert [each.end.usage.drafts.failures for each in given_up] == [MAX_FAILURES, 0]
    assert all(each.end.usage.drafts.given_up for each in given_up)
    running.park(part)
    running.unpark(part)
    last = collect(running.submit(request))
    assert last.tokens == given_up[1].tokens == expected
    assert last.end.usage.drafted > 0
    assert not last.end.usage.drafts.given_up


def test_what_cannot_be_parked_is_refused(engine, fresh):
    running = engine(model=fresh())
    with pytest.raises(EngineError, match="no drafter"):
        running.park("draft")
    with pytest.raises(EngineError, match="only target, draft, all"):
        running.park("weights")
    running.unpark()
    assert not running.parked

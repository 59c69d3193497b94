"""An overview of an engine: of one moment, and for nothing."""

from __future__ import annotations

import threading

import pytest

from kinfolk.engine.inbox import Inbox
from kinfolk.errors import EngineError
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request, Status


def run(engine, request, on_token=lambda: None):
    """Run a request to its end; ``on_token`` is called on the engine's thread."""
    ended = threading.Event()

    def take(event):
        if isinstance(event, Emitted):
            on_token()
        elif isinstance(event, Finished):
            ended.set()

    engine.submit(request, take)
    assert ended.wait(60)


def test_an_idle_engine_answers_and_has_no_requests(engine):
    found = engine().overview().result(20)
    assert (found.requests, found.counters["steps"]) == ((), 0)


def test_counters_and_requests_are_of_one_moment(engine, text):
    """Asked for after each token, from another thread: however late the answer comes, its counters
    and requests agree."""
    running, seen = engine(), []

    def look():
        running.overview().add_done_callback(lambda done: seen.append(done.result()))

    run(running, Request("a", tuple(text[:20]), 60), look)
    last = running.overview().result(20)
    assert last.requests == ()
    assert len(seen) == 60
    for found in seen:
        for view in found.requests:
            assert (view.request_id, view.prompt, view.slot) == ("a", 20, 1)
            if view.status is Status.DECODE:
                assert view.position == 20 + view.emitted - 1
                assert found.counters["running"] == 1
                # One step computes the prompt, and each of the others a token.
                assert found.counters["steps"] - view.emitted in (0, 1)


def test_looking_does_not_keep_the_engine_from_launching_early(engine, text):
    """What delays a step is a call that waits; looks do not count as one."""
    running = engine()
    waited = []

    def look():
        running.overview()
        waited.append(running.pending_calls)

    run(running, Request("a", tuple(text[:9]), 20), look)
    assert waited == [False] * 20


def test_a_request_that_waits_is_shown_with_its_priority(engine, text):
    running = engine(slots=1)
    begun = threading.Event()
    first = running.submit(Request("first", tuple(text[:9]), 400), lambda _: begun.set())
    assert begun.wait(20)
    running.submit(Request("second", tuple(text[:9]), 4, priority=-3))
    views = {view.request_id: view for view in running.overview().result(20).requests}
    while "second" not in views:  # it was on its way
        views = {view.request_id: view for view in running.overview().result(20).requests}
    assert views["second"].slot is None
    assert views["second"].priority == -3
    assert views["second"].status is Status.WAITING
    first.cancel()


def test_reused_tokens_are_counted_by_the_place_where_they_were(engine, text):
    running = engine()
    prompt = tuple(text[:100])
    list(running.submit(Request("a", prompt, 2, checkpoints=(80,))))
    *_, end = running.submit(Request("b", prompt, 2))
    assert (end.usage.reused, end.usage.reused_from) == (80, "device")
    found = running.overview().result(20).counters
    assert (found["prefix_hits_device"], found["prefix_tokens_device"]) == (1, 80)
    assert (found["prefix_hits_host"], found["prefix_hits_disk"]) == (0, 0)


def test_a_closed_engine_shows_nothing_more(engine):
    running = engine()
    running.close()
    with pytest.raises(EngineError, match="has stopped"):
        running.overview()


# -- the inbox alone ------------------------------------------------------------------------------


def test_looks_wait_until_they_are_shown_and_actions_until_they_are_taken():
    inbox = Inbox()
    found = inbox.look(lambda: 7)
    inbox.post(lambda: ())
    assert (len(inbox), inbox.looks, found.done()) == (1, True, False)
    inbox.show()
    assert (len(inbox), inbox.looks, found.result(0)) == (1, False, 7)
    action = inbox.take()
    assert action is not None
    assert action() == ()
    assert inbox.take() is None


def test_a_look_that_fails_or_is_given_up_harms_nobody():
    inbox = Inbox()

    def broken():
        raise ValueError("no")

    failed, given_up, last = inbox.look(broken), inbox.look(lambda: 1), inbox.look(lambda: 2)
    assert given_up.cancel()
    inbox.show()
    assert isinstance(failed.exception(0), ValueError)
    assert last.result(0) == 2

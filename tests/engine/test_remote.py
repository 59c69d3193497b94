"""An engine that is used through a connection answers as it does without one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from multiprocessing import Pipe
from queue import SimpleQueue

import pytest

from kinfolk.engine.remote import EngineClient, EngineServer, Reply, Submit
from kinfolk.errors import EngineError, RequestError
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import FinishReason, Request, Sampling


class Link:
    """Both ends of a connection to an engine, in one process."""

    def __init__(self, engine):
        self.ours, theirs = Pipe()
        self.theirs = theirs
        self.lost = SimpleQueue()
        self.handled = SimpleQueue()
        self.server = EngineServer(engine, self.ours, self.handled.put)
        self.client = EngineClient(theirs, lambda: self.lost.put(True))

    def run(self, request):
        """The events of a request, until it has ended."""
        events = SimpleQueue()
        self.client.submit(request, events.put)
        found = [events.get(timeout=60)]
        while not isinstance(found[-1], Finished):
            found.append(events.get(timeout=60))
        return found


@pytest.fixture
def connect():
    links = []

    def connect(engine, started=True):
        links.append(Link(engine))
        if started:
            links[-1].client.start()
        return links[-1]

    yield connect
    for link in links:
        link.server.close()
        link.client.close()


class StubEngine:
    """Accepts every request and leaves its events to the test."""

    def __init__(self, error=None):
        self.listeners = {}
        self.cancelled = SimpleQueue()
        self.error = error

    def submit(self, request, on_event):
        if self.error is not None:
            raise self.error
        self.listeners[request.id] = on_event

    def cancel(self, request_id, reason=FinishReason.CANCELLED):
        self.cancelled.put((request_id, reason))

    def stats(self):
        return {"steps": 3}


def ask(name="r", **fields):
    return Request(name, (1, 2, 3), 4, Sampling(**fields))


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "seed": 5}, {"logprobs": 2}])
def test_events_are_those_of_the_engine_itself(engine, connect, text, fields):
    engine = engine()
    alone = Request("r", tuple(text[:20]), 6, Sampling(**fields))
    expected = list(engine.submit(alone))
    assert connect(engine).run(alone) == expected
    assert [isinstance(event, Emitted) for event in expected] == [True] * 6 + [False]


def test_a_request_that_is_refused_raises_what_the_engine_raises(engine, connect):
    engine = engine()
    link = connect(engine)
    with pytest.raises(RequestError) as direct:
        engine.submit(Request("r", (10**6,), 4, Sampling()))
    with pytest.raises(type(direct.value)) as remote:
        link.client.submit(Request("r", (10**6,), 4, Sampling()), print)
    assert str(remote.value) == str(direct.value)
    assert remote.value.field == direct.value.field
    assert len(link.run(ask())) == 5, "the connection goes on"


def test_an_id_that_is_running_is_refused_and_its_request_goes_on(connect):
    engine = StubEngine()
    link = connect(engine)
    events = SimpleQueue()
    link.client.submit(ask(), events.put)
    with pytest.raises(RequestError, match="request 'r' is still running; use another id"):
        link.client.submit(ask(), print)
    engine.listeners["r"](Emitted("r", (7,)))
    assert events.get(timeout=10) == Emitted("r", (7,))
    link.client.close()
    assert engine.cancelled.get(timeout=10) == ("r", FinishReason.CANCELLED)


def test_an_error_that_cannot_travel_is_told_in_words(connect):
    class Local(Exception):
        pass

    with pytest.raises(EngineError, match="Local: out of order"):
        connect(StubEngine(Local("out of order"))).client.submit(ask(), print)


def test_cancelling_and_counting_reach_the_engine(connect):
    engine = StubEngine()
    link = connect(engine)
    link.client.submit(ask(), print).cancel(FinishReason.STOP)
    assert engine.cancelled.get(timeout=10) == ("r", FinishReason.STOP)
    assert link.client.stats() == {"steps": 3}


def test_other_messages_are_handed_on_in_order(connect):
    link = connect(StubEngine(), started=False)
    for message in ("one", 2):
        link.client.send(message)
    link.theirs.close()
    assert [link.handled.get(timeout=10) for _ in range(3)] == ["one", 2, None]


def test_events_of_a_step_travel_in_one_message(connect):
    engine = StubEngine()
    link = connect(engine, started=False)
    link.theirs.send(Submit(1, ask()))
    assert link.theirs.recv()[0].error is None
    listen = engine.listeners["r"]
    # As if the connection were busy: what is emitted meanwhile waits together.
    with link.server._sending:
        for number in range(64):
            listen(Emitted("r", (number,)))
    messages = [link.theirs.recv()]
    while sum(map(len, messages)) < 64:
        messages.append(link.theirs.recv())
    emitted = [tokens for message in messages for _, tokens, _ in message]
    assert emitted == [(number,) for number in range(64)]
    assert len(messages) <= 2, "the first one may have left before the connection was busy"


def test_a_client_that_reads_nothing_does_not_hold_the_engine_up(connect):
    engine = StubEngine()
    link = connect(engine, started=False)
    link.theirs.send(Submit(1, ask()))
    link.theirs.recv()
    listen, tokens = engine.listeners["r"], tuple(range(100))
    started = time.monotonic()
    for _ in range(20_000):  # far more than a connection holds
        listen(Emitted("r", tokens))
    assert time.monotonic() - started < 10
    received = 0
    while received < 20_000:
        received += len(link.theirs.recv())


def test_when_the_engine_is_lost_every_request_fails():
    far, near = Pipe()
    lost, events = SimpleQueue(), SimpleQueue()
    client = EngineClient(near, lambda: lost.put(True))
    client.start()

    def end():
        """The engine's process accepts two requests, and ends when it is asked a third thing."""
        for _ in range(2):
            far.send([Reply(far.recv().call)])
        far.recv()
        far.close()

    ending = threading.Thread(target=end)
    ending.start()
    for name in ("a", "b"):
        client.submit(ask(name), events.put)
    with pytest.raises(EngineError, match="the engine's process has ended"):
        client.stats()
    ended = [events.get(timeout=10), events.get(timeout=10)]
    assert {event.request_id for event in ended} == {"a", "b"}
    for event in ended:
        assert (event.reason, event.error) == (FinishReason.ERROR, "the engine's process has ended")
        assert event.usage.prompt == 3
    assert lost.get(timeout=10)
    with pytest.raises(EngineError, match="has ended"):
        client.submit(ask("c"), print)
    ending.join(10)
    near.close()


def test_when_the_client_is_lost_its_requests_are_cancelled(connect):
    engine = StubEngine()
    link = connect(engine, started=False)
    for call, name in enumerate("ab"):
        link.theirs.send(Submit(call, ask(name)))
        link.theirs.recv()
    engine.listeners["a"](Finished("a", FinishReason.LENGTH, None))
    link.theirs.close()
    assert engine.cancelled.get(timeout=10) == ("b", FinishReason.CANCELLED)
    assert link.handled.get(timeout=10) is None
    assert engine.cancelled.empty()


class SlowToLook:
    """An engine whose step is not over: it answers everything but looks."""

    def __init__(self):
        self.asked: SimpleQueue[Future] = SimpleQueue()

    def overview(self):
        found: Future = Future()
        self.asked.put(found)
        return found

    def stats(self):
        return {"steps": 3}


def test_a_look_that_waits_delays_no_other_call(connect):
    engine = SlowToLook()
    client = connect(engine).client
    found = client.overview()
    waiting = engine.asked.get(timeout=20)
    assert client.stats() == {"steps": 3}
    assert not found.done()
    waiting.set_result("shown")
    assert found.result(20) == "shown"


def test_an_overview_comes_through_a_connection(engine, text, connect):
    running = engine()
    client = connect(running).client
    list(running.submit(Request("a", tuple(text[:9]), 3)))
    found = client.overview().result(20)
    assert found.requests == ()
    assert found.counters == running.stats()
    running.close()
    with pytest.raises(EngineError, match="has stopped"):
        client.overview().result(20)

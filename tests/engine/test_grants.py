"""Manual turns, slots and the bounded queue, as a client of the engine sees them."""

from __future__ import annotations

import pickle
import threading

import pytest

from kinfolk.errors import EngineError, QueueFull, RequestError, SlotTaken
from kinfolk.sched.events import Blocked, Held
from kinfolk.sched.request import Request, Status

PATIENCE_SECONDS = 60


class Pauses:
    """What a request's client hears: tokens, and each pause."""

    def __init__(self):
        self.tokens = []
        self.pauses = []
        self._paused = threading.Semaphore(0)
        self._ended = threading.Event()

    def event(self, event):
        self.tokens += getattr(event, "tokens", ())
        if not hasattr(event, "tokens"):
            self._ended.set()

    def pause(self, pause):
        self.pauses.append(pause)
        self._paused.release()

    def wait(self):
        assert self._paused.acquire(timeout=PATIENCE_SECONDS)
        return self.pauses[-1]

    def end(self):
        assert self._ended.wait(PATIENCE_SECONDS)
        return self.tokens


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_a_request_in_turns_emits_what_it_would_alone(engine, load, solo, text, graphs):
    """With recorded steps each is launched before the one before it is read: also then, none goes
    beyond a grant."""
    running = engine(model=load(graphs=graphs))
    request = Request("a", tuple(text[:20]), 20, grant=3, slot=5)
    heard = Pauses()
    running.submit(request, heard.event, heard.pause)
    for turn, tokens in enumerate((5, 1, 4), start=1):
        assert heard.wait() == Held("a", 5)
        assert len(heard.tokens) == (3, 8, 9)[turn - 1]
        (view,) = running.view()
        assert (view.status, view.slot, view.left) == (Status.HELD, 5, 0)
        assert view.pending == heard.tokens[-1]
        running.grant("a", tokens)
    heard.wait()
    running.grant("a")
    assert heard.end() == solo(Request("a", request.prompt, 20)).tokens
    running.grant("a", 3)
    running.grant("nobody", 3)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "2", True])
def test_a_grant_of_nothing_is_refused_where_it_is_asked_for(engine, text, tokens):
    """On the engine's thread it would end all requests."""
    running, heard = engine(), Pauses()
    running.submit(Request("a", tuple(text[:9]), 20), heard.event)
    with pytest.raises(RequestError, match="a grant is of at least 1 token, got"):
        running.grant("a", tokens)
    assert len(heard.end()) == 20


def test_a_full_queue_is_an_error_with_the_numbers(engine, text):
    running = engine(slots=2, max_queue=1)
    for number in range(3):
        running.submit(Request(str(number), tuple(text[:9]), 400, grant=1))
    with pytest.raises(QueueFull, match=r"3 requests are in flight, 2 may run .* 1 may wait"):
        running.submit(Request("late", tuple(text[:9]), 4))
    running.cancel("0")


def test_a_request_that_waits_for_held_ones_hears_of_it(engine, text):
    running = engine(slots=1)
    first, second = Pauses(), Pauses()
    running.submit(Request("a", tuple(text[:9]), 9, grant=1), first.event, first.pause)
    first.wait()
    running.submit(Request("b", tuple(text[:9]), 3), second.event, second.pause)
    assert second.wait() == Blocked("b")
    running.cancel("a")
    assert len(second.end()) == 3


def test_a_taken_slot_is_refused_before_anything_is_queued(engine, text):
    running = engine()
    heard = Pauses()
    running.submit(Request("a", tuple(text[:9]), 9, grant=1), heard.event, heard.pause)
    assert heard.wait().slot == 1
    with pytest.raises(SlotTaken, match="slot 1 is taken by request 'a'"):
        running.submit(Request("b", tuple(text[:9]), 3, slot=1))
    running.submit(Request("c", tuple(text[:9]), 9, slot=2, grant=1))
    with pytest.raises(SlotTaken, match="slot 2 is taken by request 'c'"):
        running.submit(Request("d", tuple(text[:9]), 3, slot=2))


def test_only_a_held_request_can_be_kept(engine, text, collect):
    running = engine()
    with pytest.raises(EngineError, match="'nobody' is not held"):
        running.keep("nobody")
    heard = Pauses()
    running.submit(Request("a", tuple(text[:20]), 9, grant=4), heard.event, heard.pause)
    heard.wait()
    assert running.keep("a")
    follow = Request("b", (*text[:20], *heard.tokens, 5), 3)
    assert collect(running.submit(follow)).end.usage.reused == 23


@pytest.mark.parametrize("kind", [QueueFull, SlotTaken])
def test_errors_reach_another_process(kind):
    assert str(pickle.loads(pickle.dumps(kind("full")))) == "full"

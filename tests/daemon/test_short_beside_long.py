"""A short request is heard, and a long one ends, while a long prompt is prefilled: counts of steps
of a real engine."""

from __future__ import annotations

import threading

import pytest
from talk import Talk

from kinfolk.engine.bundled import bundled_model
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import FinishReason, Request

LONG, SLICE, STEP_TOKENS = 3000, 512, 640
PROMPT = tuple(number * 13 % 400 for number in range(LONG))
DONE = -1


class Watched:
    """A long prompt beside a request that decodes, whose listener, on the engine's thread, does
    something when ``prefilled`` tokens of prompts were computed."""

    def __init__(self, engine, prompt):
        self.engine = engine
        self.steps = {}
        self.ends = {}
        self.done = threading.Event()
        self.prefilled = 0
        self._prompt = prompt

    def note(self, name):
        """The number of steps that have run."""
        self.steps.setdefault(name, self.engine.stats()["steps"])

    def hear(self, name):
        def listen(event):
            if isinstance(event, Emitted):
                self.note(f"{name}: first token")
            elif isinstance(event, Finished):
                self.note(f"{name}: end")
                self.ends[name] = event
                if len(self.ends) == 3:
                    self.done.set()

        return listen

    def run(self, act):
        """Submit a request that decodes and the long one, and ``act`` when the first has had
        three events. Returns when three requests have ended."""
        ticks = []

        def tick(event):
            ticks.append(event)
            if isinstance(event, Finished):
                self.hear("ticks")(event)
            elif len(ticks) == 1:
                self.engine.submit(Request("long", self._prompt, 2), self.hear("long"))
            elif len(ticks) == 3:
                self.note("act")
                self.prefilled = self.engine.stats()["prefill_rows"]
                act()

        self.engine.submit(Request("ticks", self._prompt[:5], 40), tick)
        assert self.done.wait(120)


@pytest.fixture(scope="module")
def pocket(load, registry):
    return load(bundled_model(registry), context=4096, checkpoints=0)


@pytest.fixture
def running(engine, pocket):
    return engine(model=pocket, context=4096, slice=SLICE, step_tokens=STEP_TOKENS)


@pytest.fixture
def watched(running):
    return Watched(running, PROMPT)


def test_a_short_request_has_its_first_token_within_two_mixed_steps(watched):
    short = Request("short", (5, 6, 7), 3)
    watched.run(lambda: watched.engine.submit(short, watched.hear("short")))
    steps = watched.steps
    assert SLICE <= watched.prefilled < LONG - SLICE
    assert steps["short: first token"] - steps["act"] <= 2
    assert steps["short: end"] < steps["long: first token"]


def test_a_cancel_ends_a_prompt_within_a_step(watched):
    def act():
        watched.engine.cancel("long")
        watched.engine.submit(Request("short", (5, 6, 7), 1), watched.hear("short"))

    watched.run(act)
    assert SLICE <= watched.prefilled < LONG - SLICE
    assert watched.ends["long"].reason is FinishReason.CANCELLED
    assert watched.steps["long: end"] - watched.steps["act"] <= 1
    assert "long: first token" not in watched.steps
    assert watched.engine.stats()["prefill_rows"] < LONG


def test_lines_of_the_daemon_are_obeyed_while_a_prompt_is_prefilled(running, tmp_path):
    talk = Talk(running, tmp_path, context=4096)
    talk.file("long.bin", list(PROMPT))
    talk.file("short.bin", [5, 6, 7])
    talk.say(f"REQ 1 START {tmp_path}/long.bin 9 9", f"REQ 2 START {tmp_path}/short.bin 3 3")
    talk.until(2, DONE)
    talk.say("REQ 3 CANCEL 1")
    talk.end()
    assert [request for request, _ in talk.frames] == [2, 2, 2, 2, 1, 3]
    assert running.stats()["prefill_rows"] < LONG

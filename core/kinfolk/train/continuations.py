"""Continuations by the target itself: a drafter must predict what the target says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from kinfolk.engine.runtime import Runtime
from kinfolk.errors import EngineError
from kinfolk.sched.events import Emitted, Event
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.train.texts import Text


@dataclass(frozen=True, slots=True)
class Continuing:
    """How texts are continued: at most ``tokens`` tokens each, and by what sampling."""

    tokens: int
    temperature: float = 0.0
    seed: int = 0


def continued(
    runtime: Runtime,
    prompts: Mapping[int, Text],
    how: Continuing,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Text]]:
    """(number of a prompt, the prompt and its continuation), in the order in which they end.

    A prompt has its own seed, so a continuation depends on others by rounding only: two tokens that
    are nearly as likely may change places from run to run. After ``stop()`` no more are begun, and
    what runs is dropped. Raises :class:`EngineError` if the engine fails.
    """
    events: SimpleQueue[tuple[int, Event]] = SimpleQueue()
    waiting = iter(prompts.items())
    running: dict[int, list[int]] = {}

    def begin() -> None:
        # Twice as many as run, so that the engine never waits for this thread.
        while len(running) < 2 * runtime.loaded.limits.slots:
            number, prompt = next(waiting, (-1, None))
            if prompt is None:
                break
            running[number] = []
            request = _request(number, prompt, how, runtime.tokenizer.eog)
            runtime.engine.submit(request, partial(_put, events, number))

    begin()
    while running:
        number, event = events.get()
        if isinstance(event, Emitted):
            running[number] += event.tokens
        else:
            if event.reason is FinishReason.ERROR:
                raise EngineError(f"the model failed to continue a text: {event.error}")
            tokens = running.pop(number)
            prompt = prompts[number].tokens
            yield number, Text((*prompt, *tokens), len(prompt))
            begin()
        if stop():
            for left in running:
                runtime.engine.cancel(str(left))
            return


def _put(events: SimpleQueue[tuple[int, Event]], number: int, event: Event) -> None:
    events.put((number, event))


def _request(number: int, prompt: Text, how: Continuing, ends: frozenset[int]) -> Request:
    sampling = Sampling(temperature=how.temperature, seed=how.seed + number)
    return Request(str(number), prompt.tokens, how.tokens, sampling, stop=ends)

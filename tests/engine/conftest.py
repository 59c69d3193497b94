"""Engines on a tiny model, and the outcomes of requests."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle_drafter
import pytest

from kinfolk.engine.engine import Engine, Ticket
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import TokenLogprob
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings

PATIENCE = 60.0
"""Seconds until a waiting test gives up, more than a hundred times what any wait takes."""


@pytest.fixture(autouse=True)
def kernels_of_whole_models_are_not_checked_for_overflow(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's interpreter does each integer operation again in 64 bits: that is nearly half of the
    time, and the tests of the kernels themselves have it done."""
    if request.node.get_closest_marker("interpreter"):
        from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

        unchecked = InterpreterOptions(sanitize_overflow=False)
        monkeypatch.setattr(interpreter_builder, "options", unchecked)


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.discover(load_settings())


@pytest.fixture(scope="session")
def load(registry: Registry, cases: Path) -> Callable[..., LoadedModel]:
    """``load(registry=..., **settings)``: the small hybrid model of the reference case."""

    def open_model(registry: Registry = registry, **settings: Any) -> LoadedModel:
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 8, **settings}
        return load_model(cases / "qwen35.gguf", load_settings(**options), registry)

    return open_model


@pytest.fixture(scope="session")
def loaded(load: Callable[..., LoadedModel]) -> LoadedModel:
    return load()


@pytest.fixture(scope="session")
def text(cases: Path) -> list[int]:
    """160 token ids, random but for a few repetitions."""
    tokens: list[int] = np.load(cases / "qwen35.npz")["tokens"].tolist()
    return tokens


# -- running --------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The outcome of a request: its tokens and its last event."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: Finished | None = None

    def take(self, event: Emitted | Finished) -> None:
        assert self.end is None, "nothing may follow the end"
        if isinstance(event, Finished):
            self.end = event
        else:
            self.tokens += event.tokens
            self.logprobs += event.logprobs

    @classmethod
    def of(cls, events: Iterable[Emitted | Finished]) -> Outcome:
        outcome = cls()
        for event in events:
            outcome.take(event)
        return outcome


@pytest.fixture(scope="session")
def collect() -> Callable[[Ticket], Outcome]:
    """``collect(ticket)``: wait for the end of a request."""
    return Outcome.of


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[Callable[..., Engine]]:
    """``engine(drafter=None, model=None, **limits)``: engines that must hold no state once they are
    closed."""
    opened: list[Engine] = []

    def start(drafter: Any = None, model: LoadedModel | None = None, **limits: Any) -> Engine:
        values = {"slots": 8, "context": 512, "step_tokens": 128, "slice": 32, **limits}
        model = model or loaded
        opened.append(
            Engine(model, SchedulerLimits(vocabulary=model.info.vocabulary, **values), drafter)
        )
        return opened[-1]

    yield start
    for each in opened:
        each.close()
        assert each.closed
        each.check_integrity()


@pytest.fixture(scope="session")
def solo(loaded: LoadedModel) -> Callable[[Request], Outcome]:
    """``solo(request)``: the outcome of a request alone in an engine, without drafts or reuse.

    Rounding depends on the shape of a step, by up to 1e-4 in a logit; the two best logits of the
    greedy outputs here are never closer than 1.9e-3.
    """
    known: dict[Request, Outcome] = {}

    def run(request: Request) -> Outcome:
        bare = replace(request, id="solo", checkpoints=(), keep=False)
        if bare not in known:
            limits = SchedulerLimits(
                slots=1, context=512, step_tokens=128, slice=32, vocabulary=loaded.info.vocabulary
            )
            with Engine(loaded, limits) as alone:
                known[bare] = Outcome.of(alone.submit(bare))
        return known[bare]

    return run


class Gate:
    """A listener that blocks the engine at an event of its request until an action is posted.

    So a test controls which requests meet: ``arm`` it before the engine runs on, ``wait`` until it
    blocks, arm the next one, then submit or cancel.
    """

    def __init__(self, engine: Engine, hold_after: int = 0) -> None:
        self.outcome = Outcome()
        self._engine = engine
        self._left = hold_after
        self._held = threading.Semaphore(0)
        self._ended = threading.Event()

    def arm(self, events: int) -> None:
        """Block the engine at the ``events``-th event from now."""
        self._left = events

    def wait(self) -> None:
        assert self._held.acquire(timeout=PATIENCE)

    def result(self) -> Outcome:
        """The outcome, when the request has ended."""
        assert self._ended.wait(PATIENCE)
        return self.outcome

    def __call__(self, event: Emitted | Finished) -> None:
        self.outcome.take(event)
        if isinstance(event, Finished):
            self._ended.set()
        self._left -= 1
        if self._left == 0:
            self._held.release()
            deadline = time.monotonic() + PATIENCE
            while not self._engine.pending_calls:
                assert time.monotonic() < deadline
                time.sleep(0.001)


@pytest.fixture(scope="session")
def gate() -> type[Gate]:
    return Gate


# -- drafters and models that misbehave -----------------------------------------------------------


@pytest.fixture(scope="session")
def altered() -> Callable[..., LoadedModel]:
    """``altered(loaded, **methods)``: a copy whose model has some methods replaced."""

    def change(loaded: LoadedModel, **methods: Callable[..., Any]) -> LoadedModel:
        model = copy.copy(loaded.model)
        for name, method in methods.items():
            setattr(model, name, method)
        return replace(loaded, model=model)

    return change


@dataclass
class Prophet:
    """A drafter that knows the future tokens; every ``wrong``-th is wrong, 0 = none."""

    futures: list[list[int]]
    wrong: int = 0
    released: int = 0

    def propose(self, known: list[int], limit: int) -> list[int]:
        for future in self.futures:
            if future[: len(known)] == known:
                draft = future[len(known) : len(known) + limit]
                return [
                    (token + 1) % 700 if self.wrong and (place + 1) % self.wrong == 0 else token
                    for place, token in enumerate(draft)
                ]
        return []

    def release(self, known: list[int]) -> None:
        self.released += 1


@pytest.fixture(scope="session")
def prophet() -> type[Prophet]:
    return Prophet


@pytest.fixture(scope="session")
def drafters(registry: Registry) -> Registry:
    """The registry with the drafter of the tests, which knows the future."""
    return replace(registry, drafters={**registry.drafters, "oracle": oracle_drafter.spec()})


@pytest.fixture
def drafted(
    load: Callable[..., LoadedModel], drafters: Registry, tmp_path: Path
) -> Callable[..., LoadedModel]:
    """``drafted(futures, width=7, budget=None, **keys)``: the model with a drafter that knows
    futures; ``budget`` asks for trees, ``settings`` are further settings of the model."""

    def open_model(
        futures: list[list[int]],
        *,
        width: int = 7,
        budget: int | None = None,
        settings: dict[str, Any] | None = None,
        **keys: Any,
    ) -> LoadedModel:
        path = oracle_drafter.write(tmp_path / "draft.gguf", futures, **keys)
        options: dict[str, Any] = (
            {"draft_tokens": width} if budget is None else {"draft_budget": budget}
        )
        mode = "chain" if budget is None else "tree"
        options = {"draft_model": path, "draft_mode": mode, **options, **(settings or {})}
        return load(registry=drafters, **options)

    return open_model

"""A session over the toy engine: lines in, steps when the test wants them, frames out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from toy_world import World

from kinfolk.daemon.frames import TAG, FrameReader, TextReader, Wire
from kinfolk.daemon.output import Output
from kinfolk.daemon.session import Session
from kinfolk.daemon.surroundings import SessionOptions
from kinfolk.errors import EngineError, QueueFull, RequestError, SlotTaken
from kinfolk.sched.events import Pause, SchedulerEvent
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind, StepPlan
from kinfolk.sched.request import Request
from kinfolk.sched.view import SequenceView


class StoppedEngine:
    """The methods of an engine over the toy's scheduler, without a thread: ``step`` runs a step.

    ``failing`` are requests that fail in the next step, ``burn`` makes it lose all state, ``stuck``
    fails to unpark.
    """

    def __init__(self, limits: SchedulerLimits, **options: Any) -> None:
        self.world = World(limits, **options)
        self._listeners: dict[str, tuple[Callable[..., None], Callable[[Pause], None]]] = {}
        self.plans: list[StepPlan] = []
        self.burn = self.stuck = False
        self.parked: frozenset[str] = frozenset()

    def submit(
        self, request: Request, on_event: Callable[..., None], on_pause: Callable[[Pause], None]
    ) -> None:
        scheduler, most = self.world.scheduler, self.world.limits.most_in_flight
        scheduler.check(request)
        if request.id in self._listeners:
            raise RequestError(f"request {request.id!r} is still running")
        if most is not None and len(self._listeners) >= most:
            raise QueueFull(f"the queue is full: {len(self._listeners)} requests are in flight")
        if request.slot is not None and (owner := scheduler.owner(request.slot)) is not None:
            raise SlotTaken(f"slot {request.slot} is taken by request {owner!r}")
        self._listeners[request.id] = (on_event, on_pause)
        self.world.submit(request)

    def grant(self, request_id: str, tokens: int | None = None) -> None:
        self._tell(self.world.scheduler.grant(request_id, tokens))

    def cancel(self, request_id: str) -> None:
        self._tell(self.world.scheduler.cancel(request_id))

    def keep(self, request_id: str, length: int | None = None) -> bool:
        return self.world.scheduler.keep(request_id, length)

    def park(self, part: str) -> None:
        if self.world.scheduler.alive:
            raise EngineError(f"requests {', '.join(self.world.scheduler.alive)} have not ended")
        self.parked = frozenset({"target", "draft"} if part == "all" else {part})
        self.world.scheduler.admits = part == "draft"

    def unpark(self, part: str) -> None:
        if self.stuck:
            raise EngineError("cannot unpark: the disk is gone")
        self.parked = frozenset()
        self.world.scheduler.admits = True

    def probe(self, request_ids: list[str]) -> list[tuple[int, int]]:
        def run(some: list[str]) -> list[int]:
            with self.world.scheduler.forks(some) as plan:
                return [each.emitted[0] for each in self.world.engine.run(plan).results]

        return list(zip(run(request_ids), [run([each])[0] for each in request_ids], strict=True))

    def view(self) -> tuple[SequenceView, ...]:
        return self.world.scheduler.view()

    def step(self, failing: frozenset[str] = frozenset()) -> bool:
        plan = self.world.plan()
        if plan is None:
            self._tell(self.world.scheduler.blocked())
            return False
        self.plans.append(plan)
        if self.burn:
            self.burn = False
            self.world.engine.lose(plan)
            self._tell(self.world.scheduler.fail_all("the toy burnt down"))
        else:
            result = self.world.engine.run(plan, failing=failing)
            self._tell(self.world.scheduler.commit(result))
        return True

    @property
    def prefills(self) -> int:
        items = [item for plan in self.plans for item in plan.items]
        return sum(item.kind is ItemKind.PREFILL for item in items)

    def _tell(self, events: list[SchedulerEvent]) -> None:
        for event in events:
            listen, pause = self._listeners[event.request_id]
            self.world.take([event])
            if isinstance(event, Pause):
                pause(event)
                continue
            if event.request_id in self.world.finished:
                del self._listeners[event.request_id]
            listen(event)


class Scene:
    """One session and its engine. Events reach the session when ``settle`` is called."""

    def __init__(self, folder: Path, wire: Wire = Wire.TAGGED, **options: Any) -> None:
        names = SchedulerLimits.__dataclass_fields__
        given = {name: options.pop(name) for name in list(options) if name in names}
        defaults: dict[str, Any] = {"slots": 2, "context": 512, "slice": 16, "step_tokens": 32}
        limits = SchedulerLimits(**{**defaults, "vocabulary": 29, "max_queue": 0, **given})
        stop = options.pop("stop", frozenset())
        compressor = options.pop("compressor", None)
        self.folder = folder
        self.wire = wire
        self.engine = StoppedEngine(limits, **options)
        self.written = b""
        self.said: list[str] = []
        self._actions: list[Callable[[], None]] = []
        self.session = Session(
            self.engine,
            SessionOptions("toy", limits.slots, limits.context, stop, compressor=compressor),
            Output(wire, self._write, self.said.append),
            self._actions.append,
        )

    def _write(self, data: bytes) -> None:
        self.written += data

    def file(self, name: str, tokens: tuple[int, ...]) -> Path:
        path = self.folder / name
        path.write_bytes(np.array(tokens, "<i4").tobytes())
        return path

    def send(self, *lines: str) -> None:
        """Lines that arrive together, before the engine does anything."""
        for line in lines:
            self.session.line(line)
        self.settle()

    def settle(self) -> None:
        while self._actions:
            self._actions.pop(0)()

    def step(self, **faults: Any) -> bool:
        worked = self.engine.step(**faults)
        self.settle()
        return worked

    def run(self, bound: int = 3000) -> None:
        """Steps until the engine has nothing to do."""
        for _ in range(bound):
            if not self.step() and not self.step():
                return
        raise AssertionError("the session never comes to rest")

    def say(self, *lines: str) -> list[tuple[int, int]]:
        """Send lines, run, and return the frames of it all: (request, word)."""
        before = len(self.frames)
        self.send(*lines)
        self.run()
        return self.frames[before:]

    def end(self) -> None:
        self.session.end()
        self.settle()
        self.run()

    @property
    def frames(self) -> list[tuple[int, int]]:
        reader = FrameReader(self.wire)
        return [
            (frame.request, frame.word) for frame in reader.feed(self.written) if frame.tag == TAG
        ]

    @property
    def texts(self) -> list[str]:
        """Texts of the stream, or those that were said."""
        if self.wire is not Wire.TAGGED_V2:
            return self.said
        texts, reader = TextReader(), FrameReader(self.wire)
        found = (texts.feed(f) for f in reader.feed(self.written) if f.tag != TAG)
        return [text for text in found if text is not None]

    @property
    def tokens(self) -> dict[int, list[int]]:
        """The tokens of each request's stream."""
        found: dict[int, list[int]] = defaultdict(list)
        for request, word in self.frames:
            if word >= 0:
                found[request].append(word)
        return dict(found)

    def solo(self, prompt: tuple[int, ...], total: int, stop: frozenset[int] = frozenset()):
        return self.engine.world.expected(Request("solo", prompt, total, stop=stop))

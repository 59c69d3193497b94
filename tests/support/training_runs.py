"""What tests of whole training runs share: notes of a run, and a model that generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel
from kinfolk.sched.events import Emitted
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request, Sampling


class Notes:
    """See :class:`kinfolk.train.run.Report`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.calls: list[tuple[int, int, str]] = []

    def note(self, message: str) -> None:
        self.lines.append(message)

    def progress(self, done: int, total: int, what: str) -> None:
        self.calls.append((done, total, what))


def generated(
    loaded: LoadedModel, prompt: Sequence[int], sampling: Sampling, new: int = 40
) -> tuple[list[int], Any]:
    """The tokens of an answer, and its usage."""
    limits = SchedulerLimits(
        slots=2, context=512, step_tokens=64, slice=32, vocabulary=loaded.info.vocabulary
    )
    with Engine(loaded, limits) as engine:
        events = list(engine.submit(Request("r", tuple(prompt), new, sampling)))
    tokens = [t for event in events if isinstance(event, Emitted) for t in event.tokens]
    end: Any = events[-1]
    return tokens, end.usage

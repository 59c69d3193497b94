"""A host that is half as fast: each part of a step on the host is followed by as long a busy wait.

For measurements that must not depend on the host: with ``slowed()``, planning, launching, commit
and the dispatch of events take twice their time. Waiting for the device is not a part of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from kinfolk.engine.engine import Engine
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.engine.outputs import StepOutputs
from kinfolk.sched.scheduler import Scheduler

PARTS = (
    (Scheduler, "plan"),
    (Scheduler, "plan_next"),
    (Scheduler, "commit"),
    (ModelRunner, "launch"),
    (StepOutputs, "read"),
    (Engine, "_note"),
    (Engine, "_tell"),
)
"""What the engine's thread does in a step besides waiting."""


@contextmanager
def slowed() -> Iterator[None]:
    """Context in which engines, also those created before, have a host half as fast."""
    with ExitStack() as stack:
        for owner, name in PARTS:
            stack.enter_context(patch.object(owner, name, _twice(owner.__dict__[name])))
        yield


def _twice(part: Any) -> Any:
    if isinstance(part, classmethod):
        return classmethod(_twice(part.__func__))
    function: Callable[..., Any] = part

    @wraps(function)
    def slow(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments, **named)
        stop = 2 * time.perf_counter() - started
        while time.perf_counter() < stop:
            pass
        return result

    return slow

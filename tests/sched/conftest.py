"""Schedulers of the toy engine."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from toy_world import VOCABULARY, World, rolling, solo

from kinfolk.sched.limits import SchedulerLimits


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    """The toy's parts: ``World``, ``solo``, ``rolling``, ``vocabulary``."""
    return SimpleNamespace(World=World, solo=solo, rolling=rolling, vocabulary=VOCABULARY)


@pytest.fixture
def make_world() -> Callable[..., World]:
    """A world from scheduler limits: ``make_world(slots=2, slice=8, windows=(None,), ...)``."""

    def make(**options: Any) -> World:
        names = SchedulerLimits.__dataclass_fields__
        given = {name: options.pop(name) for name in list(options) if name in names}
        defaults = {"slots": 2, "context": 512, "slice": 16, "step_tokens": 32}
        limits = SchedulerLimits(**{**defaults, "vocabulary": VOCABULARY, **given})
        return World(limits, **options)

    return make

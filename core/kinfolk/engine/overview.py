"""What an engine does at one moment, for whoever watches it from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfolk.sched.view import SequenceView


@dataclass(frozen=True, slots=True)
class EngineOverview:
    """The engine's counters (those of ``Engine.stats``) and the requests that have not ended, in
    the order of their arrival. Both are of the same moment, after a step was committed."""

    counters: Mapping[str, int]
    requests: tuple[SequenceView, ...]

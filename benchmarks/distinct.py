"""How many different experts a decoding step reads: what its time has to be compared with."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from kinfolk.cli.bench import Workload, measure
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime
from kinfolk.ops.table import Ops
from kinfolk.sched.limits import SchedulerLimits

STEPS = 4
"""Decoding steps that are looked at."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Of one call of a layer's router: ``experts`` there are, and ``ids`` int64 [rows, K]."""

    experts: int
    ids: torch.Tensor

    @property
    def distinct(self) -> int:
        return len(self.ids.unique())

    @property
    def expected(self) -> float:
        """Of as many rows that choose at random."""
        rows, top_k = self.ids.shape
        return float(self.experts * (1 - (1 - top_k / self.experts) ** rows))


def distinct_experts(
    runtime: Runtime, limits: SchedulerLimits, work: Workload, seed: int = 0
) -> dict[str, float] | None:
    """Different experts a layer and step of ``work``, by steps that are not timed; ``None`` without
    experts.

    Nothing is recorded for these steps, so they hold the rows of sequences and no padding.
    """
    loaded = replace(runtime.loaded, graphs=False)
    with Engine(loaded, limits) as engine, _choices(loaded.ops, work.sequences) as found:
        measure(replace(runtime, engine=engine), replace(work, generate=STEPS + 1), seed)
    if not found:
        return None
    counts = [choices.distinct for choices in found]
    expected = statistics.mean(choices.expected for choices in found)
    return {
        "experts": found[0].experts,
        "distinct": round(statistics.mean(counts), 1),
        "least": min(counts),
        "share_of_expected": round(statistics.mean(counts) / expected, 3),
    }


@contextmanager
def _choices(ops: Ops, rows: int) -> Iterator[list[Choices]]:
    """Collect the experts chosen by router calls with ``rows`` rows."""
    found: list[Choices] = []
    route = ops.route

    def watched(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
        ids, weights = route(x, weight, *rest)
        if ids.shape[0] == rows and not ops.launches_suppressed:
            found.append(Choices(int(weight.shape[0]), ids.clone()))
        return ids, weights

    ops.route = watched  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        del ops.route

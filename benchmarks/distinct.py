"""The number of distinct experts that a decoding step reads, which its time is compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from kinfolk.cli.bench_runs import Workload, measure
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime
from kinfolk.nn.moe import MoE
from kinfolk.ops.binding import Ops
from kinfolk.sched.limits import SchedulerLimits

Route = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""The op ``route``, bound."""

STEPS = 4
"""Decoding steps over which the number is averaged."""


@dataclass(frozen=True, slots=True)
class Choices:
    """One call of a layer's router: its number of ``experts``, and the chosen ``ids`` int64
    [rows, K]."""

    experts: int
    ids: torch.Tensor

    @property
    def distinct(self) -> int:
        return len(self.ids.unique())

    @property
    def expected(self) -> float:
        """The expected number of distinct experts for rows that choose at random."""
        rows, top_k = self.ids.shape
        return float(self.experts * (1 - (1 - top_k / self.experts) ** rows))


def distinct_experts(
    runtime: Runtime, limits: SchedulerLimits, work: Workload, seed: int = 0
) -> dict[str, float] | None:
    """Distinct experts per layer and step of ``work``, from steps that are not timed; ``None`` for
    a model without experts.

    These steps run eagerly, so they have no padding rows.
    """
    loaded = replace(runtime.loaded, graphs=False)
    with (
        Engine(loaded, limits) as engine,
        _choices(loaded.model, loaded.ops, work.sequences) as calls,
    ):
        measure(replace(runtime, engine=engine), replace(work, generate=STEPS + 1), seed)
    if not calls:
        return None
    counts = [choices.distinct for choices in calls]
    expected = statistics.mean(choices.expected for choices in calls)
    return {
        "experts": calls[0].experts,
        "distinct": round(statistics.mean(counts), 1),
        "least": min(counts),
        "share_of_expected": round(statistics.mean(counts) / expected, 3),
    }


@contextmanager
def _choices(model: object, ops: Ops, rows: int) -> Iterator[list[Choices]]:
    """Context that collects the choices of a model's routers, in calls of ``rows`` rows."""
    choices: list[Choices] = []

    def watched(moe: MoE, route: Route) -> Route:
        def watch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ids, weights = route(x)
            if ids.shape[0] == rows and not ops.launches_suppressed:
                choices.append(Choices(len(moe.store.bay_of_expert), ids.clone()))
            return ids, weights

        return watch

    routes = {moe: moe.route for moe in _mixtures(model, set())}
    for moe, route in routes.items():
        moe.route = watched(moe, route)
    try:
        yield choices
    finally:
        for moe, route in routes.items():
            moe.route = route


def _mixtures(part: object, seen: set[int]) -> Iterator[MoE]:
    """The mixtures of experts among the parts of a model."""
    if id(part) in seen or isinstance(part, torch.Tensor):
        return
    seen.add(id(part))
    if isinstance(part, MoE):
        yield part
    elif isinstance(part, list | tuple):
        for one in part:
            yield from _mixtures(one, seen)
    elif type(part).__module__.startswith("kinfolk"):
        for one in getattr(part, "__dict__", {}).values():
            yield from _mixtures(one, seen)

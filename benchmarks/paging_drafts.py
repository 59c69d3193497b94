"""Rows ``drafts`` and ``trees`` of ``benchmarks/paging.py``: the part of drafts that is kept."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import lookup_trees
from forced import Forced
from paging_engine import Row
from paging_quality import SOURCE
from policies import cases_of
from recall import CHUNKS

from kinfolk import hookimpl
from kinfolk.cli.main import BUILT_IN
from kinfolk.descriptors import PolicySpec
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.runtime import Runtime
from kinfolk.errors import SettingsError
from kinfolk.loader import Provided
from kinfolk.model_api import ModelInfo
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.spec.verify import accept_drafts
from kinfolk.types import CHUNK_POSITIONS
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep

DRAFTS: Final[dict[str, Any]] = {"kvflash": 1024, "kvflash_burst": 4}
"""Settings of a quarter of a text of ``recall.py``."""

CONTINUED = 64
"""Tokens of an answer with drafts."""

LOOKUPS: Final[dict[str, dict[str, Any]]] = {
    "drafts": {"draft": "ngram"},
    "trees": {"draft": lookup_trees.SPEC.name, "draft_budget": lookup_trees.NODES},
}
"""Settings of prompt look-up by row: chains and trees."""


@dataclass
class Counts:
    """Drafted tokens, as many of them as can follow one another and so be kept (all those of a
    chain), and those that were kept."""

    nodes: int = 0
    drafted: int = 0
    kept: int = 0

    @property
    def percent(self) -> float:
        return round(100 * self.kept / max(1, self.drafted), 2)


class CountsDrafts(Forced):
    """Counts drafted tokens that the model itself keeps in greedy answers, even where a text is
    given and decides what is emitted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept | None:
        own = accept_drafts(step.logits.argmax(1)[step.rows.clamp_min(0)], draft)
        drafts = zip(
            draft.parents.tolist(), draft.budget.tolist(), own.n_keep.tolist(), strict=True
        )
        for parents, budget, kept in drafts:
            depths = depths_of(parents)
            self.counts.nodes += sum(depth > 0 for depth in depths)
            self.counts.drafted += min(max(depths), max(0, budget - 1))
            self.counts.kept += kept - 1
        return super().verify(step, draft, sampling)


def depths_of(parents: Sequence[int]) -> list[int]:
    """Of rows behind the rows that they follow; 0 where a row follows none."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def create(info: ModelInfo) -> CountsDrafts:
    return CountsDrafts()


COUNTING: Final = PolicySpec("counts-drafts", f"{__name__}:create")


def drafted(options: argparse.Namespace, row: str) -> Row:
    """The part of drafts by prompt look-up that the bundled model keeps, with everything on the
    device, with a budget, and with a budget along the answers that it gives without one: answers
    differ after a while, and so does what is drafted in them."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    path, most = bundled_model(registry), SOURCE * CHUNKS * CHUNK_POSITIONS
    cases = cases_of(path, registry, options.places, options.each, most=most)
    # Less one chunk: the model has room for 64 chunks, of a text and its answer.
    prompts = [tuple(case.tokens[CONTINUED:]) for case in cases]
    with opened(path, registry, options.device, row) as runtime:
        answers, resident = answered(runtime, prompts)
    with opened(path, registry, options.device, row, **DRAFTS) as runtime:
        others, paged = answered(runtime, prompts)
        _, same_text = answered(runtime, prompts, answers)
        if not runtime.engine.stats()["kvflash_evictions"]:
            raise SettingsError("nothing has left the device")
    found = {"resident": resident, "paged": paged, "same_text": same_text}
    return {
        "texts": len(prompts),
        "tokens": sum(map(len, answers)),
        "equal_tokens": sum(map(equal_tokens, answers, others)),
        "nodes": {name: counts.nodes for name, counts in found.items()},
        "drafted": {name: counts.drafted for name, counts in found.items()},
        "kept": {name: counts.kept for name, counts in found.items()},
        "kept_percent": {name: counts.percent for name, counts in found.items()},
        "points_lost": round(resident.percent - paged.percent, 2),
        "points_lost_same_text": round(resident.percent - same_text.percent, 2),
    }


def opened(path: Path, registry: Registry, device: str, row: str, **paging: Any) -> Runtime:
    counting = Provided(COUNTING, "benchmark", "benchmarks/paging_drafts.py")
    trees = Provided(lookup_trees.SPEC, "benchmark", "benchmarks/lookup_trees.py")
    registry = replace(
        registry,
        policies={**registry.policies, COUNTING.name: counting},
        drafters={**registry.drafters, lookup_trees.SPEC.name: trees},
    )
    settings = load_settings(
        device=device,
        context=(CHUNKS + 1) * CHUNK_POSITIONS,
        slots=1,
        checkpoints=0,
        draft_widths="fixed",
        policy=COUNTING.name,
        **LOOKUPS[row],
        **paging,
    )
    return Runtime.open(path, settings, registry)


def answered(
    runtime: Runtime,
    prompts: Sequence[tuple[int, ...]],
    given: Sequence[Sequence[int]] | None = None,
) -> tuple[list[list[int]], Counts]:
    """Greedy answers, one after the other, or those that are given, and what became of drafts."""
    providers = runtime.loaded.hooks.providers
    (policy,) = (each.hooks for each in providers if isinstance(each.hooks, CountsDrafts))
    policy.counts, answers = Counts(), []
    for number, prompt in enumerate(prompts):
        if given is not None:
            # Rows of a tree may lie behind the end, where none is kept.
            behind = [0] * lookup_trees.DEPTH
            policy.text([*prompt, *given[number], *behind], runtime.loaded.device)
        tokens: list[int] = []
        for event in runtime.engine.submit(Request(f"{number}", prompt, CONTINUED, keep=False)):
            if isinstance(event, Emitted):
                tokens += event.tokens
            elif event.error is not None:
                raise SettingsError(event.error)
            elif event.usage.drafts.failures:
                raise RuntimeError("the drafter failed")
        answers.append(tokens)
    return answers, policy.counts


def equal_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Before the first that differ."""
    both = zip(one, other, strict=True)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))

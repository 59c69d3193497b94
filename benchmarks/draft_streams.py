"""Drafts of several sequences: tokens a second by cost, beside fixed widths and none.

    python benchmarks/draft_streams.py MODEL DRAFTER [--planted LENGTH] [--sequences N,N…]
        [--fixed N,N…] [--prompt N] [--generate N] [--repeats N] [--json FILE]

Drafts are accepted by draws (``kinfolk bench --plant``). Every engine knows nothing of the others
and has the same prompts and draws. Tokens are counted from the first to the last of all sequences,
so at the end few sequences run. The first repeats meet steps that are captured then, and widths by
cost that still learn: the last three count. By cost, what a server captures before its port opens
is captured first.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.cli.bench_runs import Workload, measure
from kinfolk.cli.console import table
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.registry import Registry
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.settings import load_settings
from kinfolk.spec.plant import PlantedAcceptance

COUNTED = 3
"""Repeats that count, the last ones."""

say = sys.stdout.write


@dataclass(frozen=True, slots=True)
class Policy:
    """``width``: a fixed number of drafted tokens, 0 = none, ``None`` = by cost."""

    width: int | None

    @property
    def name(self) -> str:
        return {None: "by cost", 0: "none"}.get(self.width, f"{self.width}")


def tokens_per_second(
    runtime: Runtime, options: argparse.Namespace, sequences: int, policy: Policy
) -> dict[str, Any]:
    loaded, settings = runtime.loaded, load_settings()
    drafter = loaded.drafter
    if drafter is None:
        raise SystemExit(f"{options.drafter} is no drafter of {options.model}")
    planted = PlantedAcceptance.of(options.planted, drafter.plan.depth, loaded.device)
    limits = replace(
        scheduler_limits(loaded, settings),
        widths="cost" if policy.width is None else "fixed",
        draft_width=policy.width or None,
    )
    work = Workload(options.prompt, options.generate, sequences, 1.0, rows=drafter.rows + 1)
    rates: list[int] = []
    usages: list[Any] = []
    warm_up = 0.0
    with Engine(replace(loaded, drafter=replace(drafter, planted=planted)), limits) as engine:
        own = replace(runtime, engine=engine)
        if policy.width is None:
            began = time.perf_counter()
            engine.warm_up(lambda *_: None)
            warm_up = time.perf_counter() - began
        for repeat in range(options.repeats):
            ended: list[Any] = []
            run = measure(own, work, repeat, draft=policy.width != 0, ended=ended.append)
            rates.append(round(run.tokens / run.decode))
            usages = ended if len(rates) <= options.repeats - COUNTED else usages + ended
        captures = engine.stats()["captures"]
    del engine, own
    gc.collect()
    counts = DraftCounts.total(usage.drafts for usage in usages)
    return {
        "sequences": sequences,
        "policy": policy.name,
        "tok/s": statistics.median(rates[-COUNTED:]),
        "each": rates,
        "accept length": round(counts.accept_length, 2) if counts.steps else 1.0,
        "drafting steps": counts.steps,
        "steps": sum(usage.steps for usage in usages),
        "captures": captures,
        "warm-up, s": round(warm_up, 1),
    }


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("--planted", type=float, default=5.5)
    parser.add_argument("--sequences", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--fixed", type=numbers, default=[3, 7])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    registry = Registry.discover(load_settings())
    rows = []
    for sequences in options.sequences:
        settings = load_settings(
            slots=sequences,
            checkpoints=0,
            context=options.prompt + options.generate + 64,
            draft="dflash",
            draft_model=options.drafter,
        )
        with Runtime.open(options.model, settings, registry) as runtime:
            for policy in map(Policy, (0, *options.fixed, None)):
                rows.append(tokens_per_second(runtime, options, sequences, policy))
                say(f"{json.dumps(rows[-1])}\n")
                sys.stdout.flush()
        gc.collect()
    names = list(rows[0])
    say(f"{table([names, *([str(row[name]) for name in names] for row in rows)])}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

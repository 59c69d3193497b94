"""The time of a step by kernel, through the engine that ``kinfolk serve`` runs.

    python benchmarks/breakdown.py [--shape NAME] [--layers N] [--case NAME]… [--folder DIRECTORY]
                                   [--drafter NAME]

Runs cases of ``table.py`` under the profiler. Prints for each case the kernels of a step by their
share of its time: launches a step, microseconds each, and grid. A launch may start before the
launch before it has ended; its time is counted from that end. Time without a kernel is idle: gaps
between launches, and the host. Profiling makes steps longer, so only shares are meaningful.

With ``--drafter`` a block drafter of that size (``drafter_file.py``) drafts for the rows of a case;
a step then has its draft too, and idle time lies between the two.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from drafter_file import SHAPES as DRAFTERS
from drafter_file import write as write_drafter
from model_files import model_file, outline_of
from table import CASES, SHORT, Case
from torch.profiler import ProfilerActivity, profile

from kinfolk.cli.bench_runs import measure
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings
from kinfolk.spec.random_drafts import RandomDrafts
from kinfolk_kernels import launch

BLOCK = 16
"""Rows of a block of the drafter."""

STEPS = 12
"""Tokens generated under the profiler; the prompt's step yields the first."""

say = sys.stdout.write


def in_order() -> AbstractContextManager[Any]:
    """No launch inside begins before the one before it has ended."""
    return patch.object(launch, "overlaps", lambda device: False)


@dataclass
class Kernel:
    """Launches of one name and grid; ``times`` in microseconds since the launch before ended."""

    name: str
    grid: str
    times: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.5-27b")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than released")
    parser.add_argument(
        "--case", action="append", help="cases of table.py; default: the short ones"
    )
    parser.add_argument("--folder", type=Path, help="keep the traces here")
    parser.add_argument("--in-order", action="store_true", help="no launch begins early")
    parser.add_argument("--drafter", choices=list(DRAFTERS), help="drafts, of this size")
    options = parser.parse_args()
    cases = [case for case in CASES if case.settings == SHORT]
    if options.case:
        cases = [case for case in CASES if case.name in options.case]
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    plan = outline_of(options.shape, options.layers)
    with model_file(plan) as path, tempfile.TemporaryDirectory() as folder:
        drafts: dict[str, Any] = {"draft": "off"}
        if options.drafter:
            drafts = {"draft_model": str(Path(folder) / "draft.gguf")}
            write_drafter(path, Path(drafts["draft_model"]), DRAFTERS[options.drafter], BLOCK)
        for case in cases:
            settings = load_settings(device="cuda", checkpoints=0, **drafts, **case.settings)
            order = in_order() if options.in_order else nullcontext()
            with order, Runtime.open(path, settings, registry) as runtime:
                trace = traced(runtime, settings, case, Path(folder))
            if options.folder:
                options.folder.mkdir(parents=True, exist_ok=True)
                kept = options.folder / f"{options.shape}-{CASES.index(case)}.json"
                kept.write_text(json.dumps(trace))
            report(f"{options.shape}, {case.name}", trace)


def traced(runtime: Runtime, settings: Settings, case: Case, folder: Path) -> list[dict[str, Any]]:
    """Kernel events of the last steps of a case, or of the whole prompt."""
    prompts = case.work.generate <= 2
    work = case.work if prompts else replace(case.work, generate=STEPS)
    limits = replace(scheduler_limits(runtime.loaded, settings), widths="fixed")
    drafter = None
    if runtime.loaded.drafter is None:
        limits = replace(limits, max_draft=work.rows - 1)
        drafter = RandomDrafts(runtime.loaded.info.vocabulary) if work.rows > 1 else None
    with Engine(runtime.loaded, limits, drafter) as engine:
        own = replace(runtime, engine=engine)
        runs = [measure(own, work, seed) for seed in range(2)]
        say(f"\n{case.name}, not profiled: {1e3 * runs[1].prompt:.2f} ms to the first token, ")
        say(f"then {1e3 * runs[1].decode / max(1, runs[1].steps):.3f} ms a step\n")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            measure(own, work, seed=2)
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    kernels = sorted((e for e in events if e.get("cat") in device), key=lambda e: float(e["ts"]))
    return kernels if prompts else last_steps(kernels, work.rows)


def last_steps(events: list[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    """Events from the end of the fourth step to that of the last step with ``rows`` rows; a step
    ends where its outputs are copied to the host."""
    ends = [i for i, e in enumerate(events) if "DtoH" in e["name"]]
    return events[ends[3] + 1 : ends[-rows] + 1]


def report(title: str, events: list[dict[str, Any]]) -> None:
    steps = max(1, sum("DtoH" in event["name"] for event in events))
    kernels: dict[tuple[str, str], Kernel] = {}
    busy, end = 0.0, float(events[0]["ts"])
    gaps: dict[str, list[float]] = defaultdict(list)
    for event in events:
        start, time = float(event["ts"]), float(event["dur"])
        name, grid = event["name"][:60], "x".join(map(str, event["args"].get("grid", ())))
        own = max(0.0, start + time - max(start, end))
        kernels.setdefault((name, grid), Kernel(name, grid)).times.append(own)
        gaps[name].append(max(0.0, start - end))
        busy += own
        end = max(end, start + time)
    span = end - float(events[0]["ts"])
    say(f"\n{title}: {span / steps / 1e3:.3f} ms a step of {steps}, ")
    say(f"idle {(span - busy) / steps / 1e3:.3f} ms, {len(events) / steps:.0f} launches\n")
    for kernel in sorted(kernels.values(), key=lambda kernel: -sum(kernel.times))[:40]:
        total, count = sum(kernel.times), len(kernel.times)
        say(f"{100 * total / span:5.1f} % {total / steps:9.1f} us  {count / steps:6.1f} x ")
        say(f"{total / count:8.2f} us  {kernel.grid:>12}  {kernel.name}\n")
    say("idle before: ")
    waits = sorted(gaps.items(), key=lambda item: -sum(item[1]))[:8]
    say(", ".join(f"{name[:32]} {sum(times) / steps:.0f} us" for name, times in waits) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

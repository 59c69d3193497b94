"""Two builds of kinfolk interleaved in one process: is a row of the table faster or slower?

    python benchmarks/compare.py OLD [--shape NAME]… [--case NAME]… [--layers N] [--pairs N]

OLD is the folder of another checkout. The packages of both checkouts are imported into one process,
both open the same synthetic file, and runs alternate: old, new, new, old, and so on. A pair of runs
shares the state of the machine, which from day to day changes a row by 1 to 2 %. Prints for each
row the geometric mean of new / old (above 1 = new is faster) with a 95 % interval over the pairs.
Needs a GPU that holds the model twice; ``--device cpu`` tries the script.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOTS = (
    "core",
    "kernels",
    "plugins/qwen35",
    "plugins/qwen35moe",
    "plugins/gemma4",
    "plugins/laguna",
)
OWN = ("kinfolk", "kinfolk_", "table", "distinct", "model_files", "results", "shapes", "timing")
"""Prefixes of the modules of which each build has its own."""

STUDENT_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Two-sided 95 % quantiles of Student's t by degrees of freedom; 2.0 beyond."""


@dataclass
class Build:
    """One checkout: its modules are in ``sys.modules`` only while it is active."""

    name: str
    root: Path
    modules: dict[str, ModuleType] = field(default_factory=dict)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which imports, from any thread, get modules of this build."""
        paths = [str(self.root / part) for part in (*ROOTS, "benchmarks", "benchmarks/kernels")]
        sys.path[:0] = paths
        sys.modules.update(self.modules)
        try:
            yield
        finally:
            self.modules = {
                name: sys.modules.pop(name) for name in list(sys.modules) if is_own(name)
            }
            del sys.path[: len(paths)]

    def module(self, name: str) -> Any:
        return import_module(name)


def is_own(module: str) -> bool:
    return any(module == name or module.startswith((f"{name}.", "kinfolk_")) for name in OWN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="folder of the checkout to compare with")
    parser.add_argument("--shape", action="append", help="default: all of the table but qwen3-8b")
    parser.add_argument("--case", action="append", help="default: those that suit the shape")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than released")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if not (options.old / "core" / "kinfolk").is_dir():
        parser.error(f"{options.old} is no checkout of kinfolk: it has no core/kinfolk")
    # Both builds would import their benchmark modules from this script's folder.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != HERE]
    old, new = Build("old", options.old.resolve()), Build("new", HERE.parent)
    with new.active():
        table = new.module("table")
        shapes = options.shape or [name for name in table.SHAPES if name != "qwen3-8b"]
        files = new.module("model_files")
        groups = {s: table.by_settings(table.cases_of(s, options.case or ())) for s in shapes}
    for shape in shapes:
        with ExitStack() as stack:
            with new.active():
                plan = files.outline_of(shape, options.layers)
                path = stack.enter_context(files.model_file(plan))
            for cases in groups[shape]:
                for row in compare(old, new, path, cases, options.pairs, options.device):
                    sys.stdout.write(json.dumps({"shape": shape, **row}) + "\n")
                    sys.stdout.flush()


def compare(
    old: Build, new: Build, path: Path, cases: Sequence[Any], pairs: int, device: str
) -> Iterator[dict[str, Any]]:
    """Rows of the table for cases that can share an engine."""
    with ExitStack() as stack:
        runtimes = {}
        for build in (old, new):
            with build.active():
                runtimes[build.name] = stack.enter_context(_opened(build, path, cases[0], device))
        for case in cases:
            rates: dict[str, list[float]] = {"old": [], "new": []}
            with ExitStack() as engines:
                runs = {}
                for build in (old, new):
                    with build.active():
                        runs[build.name] = engines.enter_context(
                            _engine(build, runtimes[build.name], case, device)
                        )
                for pair in range(-1, pairs):  # the first captures graphs, and is not counted
                    for build in (old, new) if pair % 2 else (new, old):
                        with build.active():
                            rate = _rate(case, runs[build.name](pair + 1))
                        if pair >= 0:
                            rates[build.name].append(rate)
            yield {"case": case.name, **summary(rates["old"], rates["new"])}


def summary(old: Sequence[float], new: Sequence[float]) -> dict[str, float]:
    """Medians, and the geometric mean of new / old with its 95 % interval."""
    logs = [math.log(b / a) for a, b in zip(old, new, strict=True)]
    mean = statistics.fmean(logs)
    quantile = STUDENT_95.get(len(logs) - 1, 2.0)
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {
        "old": round(statistics.median(old), 1),
        "new": round(statistics.median(new), 1),
        "ratio": round(math.exp(mean), 4),
        "low": round(math.exp(mean - half), 4),
        "high": round(math.exp(mean + half), 4),
    }


@contextmanager
def _opened(build: Build, path: Path, case: Any, device: str) -> Iterator[Any]:
    settings = build.module("kinfolk.settings").load_settings
    registry = build.module("kinfolk.registry").Registry.discover(
        settings(), reserved_commands=build.module("kinfolk.cli.main").BUILT_IN.keys()
    )
    opened = settings(**_settings(build, case, device))
    runtime = build.module("kinfolk.engine.runtime").Runtime.open(path, opened, registry)
    try:
        yield runtime
    finally:
        with build.active():
            runtime.close()


def _settings(build: Build, case: Any, device: str) -> dict[str, Any]:
    fixed = {"device": device, "checkpoints": 0, **case.settings}
    # Older builds draft only if they are asked to.
    drafts = "draft" in build.module("kinfolk.settings").Settings.model_fields
    return {"draft": "off", **fixed} if drafts else fixed


@contextmanager
def _engine(build: Build, runtime: Any, case: Any, device: str) -> Iterator[Any]:
    """A function that runs the case once, with a seed."""
    bench = build.module("kinfolk.cli.bench")
    work = bench.Workload(**asdict(case.work))
    load_settings = build.module("kinfolk.settings").load_settings
    settings = load_settings(**_settings(build, case, device))
    limits = build.module("kinfolk.engine.runtime").scheduler_limits(runtime.loaded, settings)
    fixed = {"widths": "fixed"} if hasattr(limits, "widths") else {}
    limits = replace(limits, max_draft=work.rows - 1, **fixed)
    random_drafts = build.module("kinfolk.spec.random_drafts").RandomDrafts
    drafter = random_drafts(runtime.loaded.info.vocabulary) if work.rows > 1 else None
    engine = build.module("kinfolk.engine.engine").Engine(runtime.loaded, limits, drafter)
    own = replace(runtime, engine=engine)
    try:
        yield lambda seed: bench.measure(own, work, seed)
    finally:
        with build.active():
            engine.close()


def _rate(case: Any, run: Any) -> float:
    """Tokens a second of the case: of its prompt, or of its generated tokens."""
    work = case.work
    if work.generate <= 2:
        return float(work.sequences * work.prompt / run.prompt)
    return float(work.sequences * (work.generate - 1) / run.decode)


if __name__ == "__main__":
    main()

"""The table of speed, measured through the engine that ``kinfolk serve`` runs: one result file.

    python benchmarks/table.py [--shape NAME]… [--case NAME]… [--layers N] [--repeats N]
                               [--slow-host]
    python benchmarks/table.py --compile-only [--shape NAME]… [--case NAME]…

Measures the workloads below on a synthetic file of each shape (``model_files.py``), and writes a
JSON file to benchmarks/results. Every repeat and sequence has new random tokens, so no prefix is
reused. Figures are medians. Needs a GPU. A first run spends most of its time compiling kernels;
``--compile-only`` runs a few layers of all shapes in parallel, which fills the cache.

The cases ``http`` measure ``kinfolk serve`` on the same file, in a process of its own, with the
client of ``kinfolk bench --http``. Their first tokens and rates are to be read beside those of the
engine: ``first token of N`` and ``N sequences``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton

from kinfolk.cli.bench_http import Streams, measure_streams, percentiles, server_process
from kinfolk.cli.bench_runs import Run, Workload, measure
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.settings import Settings, load_settings
from kinfolk.spec.random_drafts import RandomDrafts
from kinfolk.synth.plan import SynthPlan
from kinfolk.version import __version__

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE / "kernels"))
from distinct import distinct_experts  # noqa: E402
from model_files import model_file, outline_of  # noqa: E402
from results import kernels_hash  # noqa: E402
from slow_host import slowed  # noqa: E402
from timing import copy_bandwidth  # noqa: E402

DEEP_PROMPT = 32768

FEW_LAYERS = 8
"""Layers of a shape that have every kind of layer and every format of the mix."""


@dataclass(frozen=True)
class Case:
    """A workload and the settings of its engine; ``wide`` ones run on ``WIDE_SHAPE`` only."""

    name: str
    work: Workload
    settings: dict[str, Any]
    wide: bool = False


@dataclass(frozen=True)
class HttpCase:
    """Streams of ``kinfolk serve``."""

    name: str
    streams: Streams


SHORT: dict[str, Any] = {"slots": 16, "context": 2050}
MANY: dict[str, Any] = {"slots": 64, "context": 2050}
LONG: dict[str, Any] = {"slots": 1, "context": DEEP_PROMPT + 128}
DEEPEST_REPEATS = 3
"""Most repeats of a prompt that is longer than ``DEEP_PROMPT``: its prefill takes a quarter of a
minute."""
CASES = (
    Case("decode, greedy", Workload(128, 128, 1, 0.0), SHORT),
    Case("decode, temperature 0.8, top-p 0.95", Workload(128, 128, 1, 0.8, 0.95), SHORT),
    Case("16 rows of one sequence", Workload(128, 128, 1, 0.0, rows=16), SHORT, wide=True),
    *(
        Case(f"{rows} rows of one sequence", Workload(128, 64, 1, 0.0, rows=rows), SHORT, wide=True)
        for rows in (4, 8, 24, 32, 64)
    ),
    Case("16 sequences", Workload(128, 128, 16, 0.0), SHORT),
    *(Case(f"{n} sequences", Workload(128, 128, n, 0.0), MANY) for n in (32, 64)),
    *(Case(f"first token of {n}", Workload(n, 2, 1, 0.0), SHORT) for n in (16, 128, 512)),
    Case("prompt of 2048", Workload(2048, 2, 1, 0.0), SHORT),
    Case("prompt of 8192", Workload(8192, 2, 1, 0.0), {"slots": 1, "context": 8194}),
    Case(
        "decode, f16 activations",
        Workload(128, 128, 1, 0.0),
        {**SHORT, "activations": "f16"},
        wide=True,
    ),
    Case("decode at 32K", Workload(DEEP_PROMPT, 128, 1, 0.0), LONG, wide=True),
    Case(
        "decode at 32K, q8_0",
        Workload(DEEP_PROMPT, 128, 1, 0.0),
        {**LONG, "kv_codec": "q8_0"},
        True,
    ),
    Case(
        "decode at 128K",
        Workload(4 * DEEP_PROMPT, 128, 1, 0.0),
        {"slots": 1, "context": 4 * DEEP_PROMPT + 128},
        wide=True,
    ),
)
HTTP_CASES = (
    HttpCase("http, first token of 16", Streams(1, 16, 2)),
    HttpCase("http, first token of 128", Streams(1, 128, 2)),
    HttpCase("http, first token of 512", Streams(1, 512, 2)),
    HttpCase("http, 16 streams", Streams(16, 128, 256)),
    HttpCase("http, 64 streams", Streams(64, 128, 256)),
)
WIDE_SHAPE = "qwen3.5-27b"
SHAPES = (WIDE_SHAPE, "qwen3.5-35b-a3b", "laguna-xs.2", "gemma-4-26b-a4b", "qwen3-8b")
HTTP_SHAPES = SHAPES[:4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", action="append", help=f"default: {', '.join(SHAPES)}")
    parser.add_argument("--case", action="append", help="default: those that suit the shape")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than released")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commit", default=_commit())
    parser.add_argument("--folder", type=Path, default=HERE / "results")
    parser.add_argument(
        "--slow-host",
        action="store_true",
        help="see slow_host.py; ratios: slow_first_tokens.py",
    )
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of kernels")
    options = parser.parse_args()
    if options.compile_only:
        compile_kernels(options.shape or SHAPES, options.case or ())
        return
    taken = datetime.now(UTC)
    result: dict[str, Any] = {
        "taken": taken.isoformat(timespec="seconds"),
        "commit": options.commit,
        "kernels": kernels_hash(),
        "slow_host": options.slow_host,
        "machine": machine(),
        "versions": {
            "kinfolk": __version__,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "rates": {"copy_bytes_per_second": copy_bandwidth(), "bf16_flops": matrix_rate()},
        "rows": [],
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{taken:%Y%m%dT%H%M%SZ}.json"
    with slowed() if options.slow_host else nullcontext():
        for shape in options.shape or SHAPES:
            cases = cases_of(shape, options.case or ())
            http = http_cases_of(shape, options.case or ())
            for row in rows_of(shape, cases, options.layers, options.repeats, http):
                result["rows"].append(row)
                sys.stdout.write(f"{json.dumps(row)}\n")
                sys.stdout.flush()
                # Written after each case, so that an interrupted run keeps its results.
                path.write_text(json.dumps(result, indent=1) + "\n")


def compile_kernels(shapes: Sequence[str], cases: Sequence[str]) -> None:
    """A process for each shape and each set of settings runs its cases on a few layers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--repeats", "1", "--layers", str(FEW_LAYERS)]
        command += ["--folder", folder]
        running = {}
        for shape in shapes:
            for alike in by_settings(cases_of(shape, cases)):
                names = [part for case in alike for part in ("--case", case.name)]
                running[shape, *names[1::2]] = subprocess.Popen(
                    [*command, "--shape", shape, *names],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
        try:
            for what, process in running.items():
                _, said = process.communicate()
                if process.returncode:
                    where = f"{', '.join(what)} on {FEW_LAYERS} layers"
                    raise SystemExit(f"{where} did not run: {said[-2000:]}")
        finally:
            for process in running.values():
                process.kill()


def cases_of(shape: str, names: Sequence[str]) -> list[Case]:
    """The cases with these names, or by default those for the shape."""
    if names:
        return [case for case in CASES if case.name in names]
    return [case for case in CASES if shape == WIDE_SHAPE or not case.wide]


def http_cases_of(shape: str, names: Sequence[str]) -> list[HttpCase]:
    """The cases over HTTP with these names, or by default those for the shape."""
    if names:
        return [case for case in HTTP_CASES if case.name in names]
    return list(HTTP_CASES) if shape in HTTP_SHAPES else []


def by_settings(cases: Sequence[Case]) -> list[list[Case]]:
    """Groups of cases that can share an engine."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(json.dumps(case.settings), []).append(case)
    return list(groups.values())


def rows_of(
    name: str,
    all_cases: Sequence[Case],
    layers: int,
    repeats: int,
    http: Sequence[HttpCase] = (),
    device: str = "cuda",
) -> Iterator[dict[str, Any]]:
    """Rows of the table for cases on one shape; a file is loaded once for each set of settings, and
    by the server."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    plan = outline_of(name, layers)
    started = time.perf_counter()
    with model_file(plan) as path:
        written = time.perf_counter() - started
        for cases in by_settings(all_cases):
            settings = load_settings(device=device, checkpoints=0, draft="off", **cases[0].settings)
            started = time.perf_counter()
            with Runtime.open(path, settings, registry) as runtime:
                loaded = time.perf_counter() - started
                for case in cases:
                    row = measured(runtime, settings, case, repeats)
                    yield {
                        "shape": name,
                        "layers": plan.layers,
                        "bytes": plan.nbytes,
                        "bytes_a_step": dense_bytes(plan),
                        "written_seconds": round(written, 1),
                        "loaded_seconds": round(loaded, 1),
                        **row,
                    }
            if device == "cuda":
                torch.cuda.empty_cache()
        if http:
            shape = {"shape": name, "layers": plan.layers, "bytes": plan.nbytes}
            for row in http_rows(path, http, repeats, device):
                yield {**shape, **row}


def http_rows(
    path: Path, cases: Sequence[HttpCase], repeats: int, device: str
) -> Iterator[dict[str, Any]]:
    """Rows of the cases over HTTP, of one server with ``MANY`` slots."""
    settings = {"device": device, "checkpoints": 0, "draft": "off", **MANY}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with server_process(["-m", str(path), *flags, "--log-level", "warning"]) as address:
        for case in cases:
            (figures,) = measure_streams(address, [case.streams], repeats)
            workload = {"workload": asdict(case.streams), "settings": MANY}
            yield {"case": case.name, **workload, **figures, "clocks": clocks()}


def dense_bytes(plan: SynthPlan) -> int | None:
    """Bytes of the file that a step of one row reads; ``None`` for models with experts."""
    sizes = {tensor.layout.name: tensor.layout.nbytes for tensor in plan.tensors}
    if any("_exps" in name for name in sizes):
        return None
    return plan.nbytes - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)


def measured(runtime: Runtime, settings: Settings, case: Case, repeats: int) -> dict[str, Any]:
    """One case on an engine of its own; the first repeat, which captures graphs, is not counted.

    At depth it is counted: a repeat takes seconds there, and the median ignores the slow one.
    """
    work, loaded = case.work, runtime.loaded
    uncounted = 0 if work.prompt >= DEEP_PROMPT else 1
    repeats = min(repeats, DEEPEST_REPEATS) if work.prompt > DEEP_PROMPT else repeats
    limits = scheduler_limits(loaded, settings)
    limits = replace(limits, max_draft=work.rows - 1, widths="fixed")
    drafter = RandomDrafts(loaded.info.vocabulary) if work.rows > 1 else None
    runs, stats, refused = _runs(runtime, limits, drafter, work, uncounted + repeats)
    runs = runs[uncounted:]
    decodes_alone = work.rows == 1 and work.generate > 2
    # Sampled cases have one sequence, whose row always reads exactly top-k experts.
    counted = decodes_alone and not work.temperature
    distinct = distinct_experts(runtime, limits, work) if counted else None
    prompts = [work.sequences * work.prompt / run.prompt for run in runs]
    decodes = [work.sequences * (work.generate - 1) / run.decode for run in runs]
    return {
        "case": case.name,
        "workload": asdict(work),
        "settings": case.settings,
        "repeats": repeats,
        "prompt_tokens_per_second": round(statistics.median(prompts), 1),
        "generate_tokens_per_second": round(statistics.median(decodes), 1),
        "first_token_milliseconds": percentiles(
            [seconds for run in runs for seconds in run.firsts], 50, 95
        ),
        "step_milliseconds": round(
            statistics.median(1e3 * run.decode / max(1, run.steps) for run in runs), 4
        ),
        "distinct_experts": distinct,
        "engine": stats,
        "uncapturable_ops": refused,
        "clocks": clocks(),
    }


def _runs(
    runtime: Runtime,
    limits: SchedulerLimits,
    drafter: RandomDrafts | None,
    work: Workload,
    count: int,
) -> tuple[list[Run], dict[str, int], dict[str, str]]:
    """Runs of one case, the counters after them, and the uncapturable ops. The engine is gone when
    this returns: 80 GB have no room for the state of a third one."""
    with Engine(runtime.loaded, limits, drafter) as engine:
        own = replace(runtime, engine=engine)
        runs = [measure(own, work, seed) for seed in range(count)]
        return runs, engine.stats(), dict(engine.uncapturable_ops())


# -- the machine ----------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
        "processors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "system": platform.platform(),
    }


def clocks() -> dict[str, str]:
    """Current clocks in MHz, temperature in degrees, power in watts; empty without nvidia-smi."""
    names = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(names, (part.strip() for part in told.splitlines()[0].split(",")), strict=True))


def matrix_rate() -> float:
    """Floating-point operations a second of a large bfloat16 product."""
    size = 8192
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    times = []
    for _ in range(13):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ b
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return 2 * size**3 / statistics.median(times[3:])


def _commit() -> str:
    """The commit, with ``-dirty`` if files differ; a placeholder in a copy without history."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=HERE)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


if __name__ == "__main__":
    main()

"""First tokens with a host half as fast (``slow_host.py``), in turn with the host as it is.

    python benchmarks/slow_first_tokens.py [--shape NAME]… [--layers N] [--prompt N]… [--repeats N]
                                           [--pause MILLISECONDS] [--device NAME]

Both are measured on one engine, eight prompts of one kind after eight of the other: first tokens of
two runs of ``table.py`` differ by a tenth, whatever the host.
Prints for each number of tokens the median milliseconds to the first token, and slow / plain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count

from model_files import model_file, outline_of
from slow_host import slowed
from table import SHORT

from kinfolk.cli.bench_runs import Workload, measure
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.engine import Engine
from kinfolk.engine.runtime import Runtime, scheduler_limits
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

BLOCK = 8
"""Prompts with one kind of host, before those with the other."""

WARM_UP = 10
"""Prompts that are not counted: kernels are compiled, a graph is captured, code is warmed up."""

KINDS = {"plain": nullcontext, "slow": slowed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", help="default: qwen3.5-27b, qwen3.5-35b-a3b")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than released")
    parser.add_argument("--prompt", type=int, action="append", help="tokens; default: 16, 128, 512")
    parser.add_argument("--repeats", type=int, default=6, help="blocks of each kind")
    parser.add_argument(
        "--pause", type=float, default=10.0, help="before each prompt, in milliseconds"
    )
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for shape in options.shape or ("qwen3.5-27b", "qwen3.5-35b-a3b"):
        prompts = options.prompt or (16, 128, 512)
        for row in rows_of(
            shape, options.layers, prompts, options.repeats, options.pause / 1e3, options.device
        ):
            sys.stdout.write(json.dumps({"shape": shape, **row}) + "\n")
            sys.stdout.flush()


def rows_of(
    shape: str, layers: int, prompts: Sequence[int], repeats: int, pause: float, device: str
) -> Iterator[dict[str, float]]:
    """A row for each number of tokens of ``prompts``."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(device=device, checkpoints=0, draft="off", **SHORT)
    with (
        model_file(outline_of(shape, layers)) as path,
        Runtime.open(path, settings, registry) as runtime,
    ):
        limits = replace(scheduler_limits(runtime.loaded, settings), max_draft=0)
        with Engine(runtime.loaded, limits) as engine:
            own = replace(runtime, engine=engine)
            for tokens in prompts:
                yield {"prompt": tokens, **compared(own, tokens, repeats, pause)}


def compared(runtime: Runtime, tokens: int, repeats: int, pause: float) -> dict[str, float]:
    """Median milliseconds to the first token with each host, and their ratio."""
    work, seeds = Workload(tokens, 2, 1, 0.0), count(1000 * tokens)
    for _ in range(WARM_UP):
        measure(runtime, work, next(seeds))
    firsts: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind, context in KINDS.items():
            with context():
                for _ in range(BLOCK):
                    time.sleep(pause)
                    firsts[kind].append(1e3 * measure(runtime, work, next(seeds)).firsts[0])
    medians = {kind: statistics.median(times) for kind, times in firsts.items()}
    found = {kind: round(median, 3) for kind, median in medians.items()}
    return {**found, "ratio": round(medians["slow"] / medians["plain"], 3)}


if __name__ == "__main__":
    main()

"""Quantised matrices times a short prompt: unpacked on the way, or in slices of numbers.

    PYTHONPATH=kernels python benchmarks/kernels/gemm_medium.py [--json FILE]

For 128, 256, 512 and 1024 rows, every launch of a step of a dense 27B and of the dense matrices of
a 35B-A3B, without the head: microseconds of ``gemm_large`` and of ``gemm_medium`` in its default
tile and in others, with the launch that converts the rows, and that launch alone. One CUDA graph
runs a launch over enough copies of the matrices to exceed the cache. Then the sums for a model,
and all launches of a 27B in one graph. Kernels are compiled first, in several processes. A tile
that fails or has a wrong result is reported and left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matrices import launch_of, random_planes, step
from timing import replay_seconds

from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.linear.gemm_medium import (
    COLUMN_PARTS,
    IN_REGISTERS,
    Division,
    MediumTile,
    gemm_medium,
)
from kinfolk_kernels.linear.prepare import operand_rows
from kinfolk_kernels.planes import Planes

CACHE = 250e6
"""Bytes of the copies that a launch alternates over: several times the second-level cache."""

ROWS = (128, 256, 512, 1024)
PROCESSES = 15
MAX_ERROR = 6e-3
"""Relative error above which a result is wrong: results of bfloat16 are off by 2e-3."""

SPARSE = {
    "delta in": (
        ("Q8_0", 8192, 2048),
        ("Q4_K", 4096, 2048),
        ("Q8_0", 32, 2048),
        ("Q8_0", 32, 2048),
    ),
    "delta out": (("Q5_K", 2048, 4096),),
    "attention in": (("Q4_K", 8192, 2048), ("Q4_K", 512, 2048), ("Q6_K", 512, 2048)),
    "attention out": (("Q4_K", 2048, 4096),),
}
"""(format, rows, columns) of the dense matrices of a 35B-A3B, launch by launch."""

TIMES = {
    "27B": Counter(name for name in step() if name != "head"),
    "35B": Counter({"delta in": 30, "delta out": 30, "attention in": 10, "attention out": 10}),
}
"""How often a step runs each launch."""

TILES = {
    "default": IN_REGISTERS,
    "4 stages": MediumTile(256, 128, 8, 4),
    "two programs": MediumTile(128, 128, 4, 3),
    "256 rows of x": MediumTile(128, 256, 8, 3),
}

say = sys.stdout.write


def matrices_of(model: str, name: str, part: int = 1) -> list[Planes]:
    if model == "27B":
        return launch_of(name, part)
    return [random_planes(f, max(32, n // part // 16 * 16), k) for f, n, k in SPARSE[name]]


def medium(
    matrices: list[Planes], x: torch.Tensor, tile: MediumTile, division: Division | None = None
) -> list[torch.Tensor]:
    outs = [torch.empty(x.shape[0], m.rows, dtype=x.dtype, device=x.device) for m in matrices]
    for launch in gemm_medium(matrices, operand_rows(x, tile.batch), outs, tile, division):
        launch.run()
    return outs


def converted(x: torch.Tensor) -> None:
    operand_rows(x, 256)


def ways(rows: int) -> dict[str, Callable[[list[Planes], torch.Tensor], Any]]:
    """The products to compare, by name."""
    found: dict[str, Callable[[list[Planes], torch.Tensor], Any]] = {"large": gemm_large}
    for name, tile in TILES.items():
        if tile.batch <= rows:
            found[name] = partial(medium, tile=tile)
    return found


def compile_one(job: tuple[str, str, str, int]) -> None:
    """Launch kernels on a few rows of matrices, so that they are in the cache on disk."""
    model, name, way, parts = job
    try:
        matrices = matrices_of(model, name, 16)
        x = torch.randn(1024, matrices[0].columns, device="cuda", dtype=torch.bfloat16)
        if parts:
            medium(matrices, x, TILES[way], Division(0, parts))
        else:
            ways(1024)[way](matrices, x)
    except Exception as error:  # the measurement will report it, too
        say(f"compiling {model}, {name}, {way}: {type(error).__name__}: {error}\n")


def compile_all() -> None:
    jobs = [(model, name, way, 0) for model in TIMES for name in TIMES[model] for way in ways(1024)]
    # What adds parts depends on their number only.
    jobs += [("27B", "down Q4_K", way, parts) for way in TILES for parts in COLUMN_PARTS]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for _ in pool.imap_unordered(compile_one, jobs, chunksize=1):
            pass


def check(matrices: list[Planes], x: torch.Tensor, outs: list[torch.Tensor]) -> float:
    """Relative error of the first and the last rows of every matrix."""
    worst = 0.0
    for planes, out in zip(matrices, outs, strict=True):
        for start in (0, max(0, planes.rows - 256) // 4 * 4):
            some = planes[start : min(planes.rows, start + 256)]
            expected = x.double() @ some.dequantize().double().T
            result = out[:, start : start + some.rows].double()
            worst = max(worst, float((result - expected).norm() / expected.norm()))
    return worst


def every_launch() -> dict[tuple[str, int, str, str], float]:
    """Microseconds of a launch, by model, rows, name and way."""
    found = {}
    for model, times in TIMES.items():
        for name in times:
            first = matrices_of(model, name)
            count = 1 + int(CACHE // sum(planes.nbytes for planes in first))
            copies = [first, *(matrices_of(model, name) for _ in range(min(count, 24) - 1))]
            operations = 2 * sum(planes.rows * planes.columns for planes in first)
            for rows in ROWS:
                x = torch.randn(rows, first[0].columns, device="cuda", dtype=torch.bfloat16)
                took = {
                    way: measure(f"{model}, {name}, {rows} rows, {way}", run, copies, x)
                    for way, run in ways(rows).items()
                }
                took["rows"] = 1e6 * replay_seconds(partial(converted, x), 10)
                found.update({(model, rows, name, way): us for way, us in took.items()})
                parts = (
                    f"{way} {us:.1f} ({operations * rows / us / 1e6:.0f})"
                    for way, us in took.items()
                    if way != "rows"
                )
                say(f"{model} {name:13} {rows:4}: {', '.join(parts)}; rows {took['rows']:.1f}\n")
            sys.stdout.flush()
    return found


def measure(
    label: str,
    run: Callable[[list[Planes], torch.Tensor], Any],
    copies: list[list[Planes]],
    x: torch.Tensor,
) -> float:
    """Microseconds of a launch; not a number if it fails or its result is wrong."""
    try:
        off = check(copies[0], x, run(copies[0], x))
        if not off < MAX_ERROR:
            say(f"  {label}: OFF BY {off:.1e}\n")
            return float("nan")

        def all_copies() -> None:
            for matrices in copies:
                run(matrices, x)

        return replay_seconds(all_copies, 7) / len(copies) * 1e6
    except Exception as error:  # go on with the other ways
        say(f"  {label}: {type(error).__name__}: {error}\n")
        return float("nan")


def whole_step(rows: int, layers: list[list[Planes]]) -> dict[str, float]:
    """Milliseconds of all launches of a 27B in one graph, by way."""
    x = {k: torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for k in (5120, 6144, 17408)}
    took = {}
    for way, run in ways(rows).items():

        def every(run: Callable[[list[Planes], torch.Tensor], Any] = run) -> None:
            for matrices in layers:
                run(matrices, x[matrices[0].columns])

        try:
            took[way] = replay_seconds(every, 3) * 1e3
        except Exception as error:  # go on with the other ways
            say(f"  {rows} rows, {way}: {type(error).__name__}: {error}\n")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.perf_counter()
    compile_all()
    say(f"compiled after {time.perf_counter() - started:.0f} s\n")
    say("model, launch, rows: us (TFLOP/s) of each way; us of the rows alone\n")
    found = every_launch()
    for model, times in TIMES.items():
        for rows in ROWS:
            sums = {
                way: sum(found[model, rows, name, way] * count for name, count in times.items())
                for way in ways(rows)
            }
            parts = ", ".join(f"{way} {us / 1e3:.2f}" for way, us in sums.items())
            say(f"{model}, all matrices without the head, {rows} rows, ms: {parts}\n")
    say(f"launches after {time.perf_counter() - started:.0f} s\n")
    sys.stdout.flush()
    layers = [launch_of(name) for name in step() if name != "head"]
    steps = {rows: whole_step(rows, layers) for rows in ROWS}
    for rows, took in steps.items():
        parts = ", ".join(f"{way} {ms:.2f}" for way, ms in took.items())
        say(f"27B, one graph, {rows} rows, ms: {parts}\n")
    say(f"all after {time.perf_counter() - started:.0f} s\n")
    if options.json:
        launches = {", ".join(map(str, key)): us for key, us in found.items()}
        options.json.write_text(json.dumps({"launches": launches, "steps": steps}, indent=1))


if __name__ == "__main__":
    main()

"""Quantised matrices times few and many rows, in the shapes of a dense 27B: time against bandwidth.

    PYTHONPATH=kernels python benchmarks/kernels/linear.py [--json FILE] [--quick] [--rows 4,8,16]

First, every launch of a step runs with 1 to 64 rows, in the default tile and in plausible others.
One CUDA graph runs it over enough copies of the matrices to exceed the cache. Second, all launches
of a step run in one graph: with the default tiles, with and without early starts, with the best
tiles, and with the rows prepared before each launch. Third, a slice of 2048 rows. Rates are bytes
of planes a second, compared with the copy bandwidth measured in the same run. Kernels are compiled
first, in several processes. A tile that fails or has a wrong result is reported and left out.

With ``--rows`` only those numbers of rows are measured, and no slice. Tiles are named v for one
row, i for int8, c for int8 by copies, m for float16 by warps on their own and f for float16 in
Triton. The first tile is that of the kernel in use. At the end the fastest is named for each launch
and number of rows, and for each format, over the launches of a step whose largest matrix has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from matrices import LAUNCHES, launch_of, step
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels import launch
from kinfolk_kernels.cuda_source import CudaLaunch
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, MAX_SUMS_ROWS, dequantize
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_f16 import LEAST_PAIRS, PAIR_COLUMNS, F16Tile, gemm_f16
from kinfolk_kernels.linear.gemm_f16 import tile_for as f16_tile_for
from kinfolk_kernels.linear.gemm_int8 import Int8Tile, gemm_int8
from kinfolk_kernels.linear.gemm_int8 import tile_for as int8_tile_for
from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.linear.gemm_mma import MmaTile, gemm_mma
from kinfolk_kernels.linear.gemm_mma import tile_for as mma_tile_for
from kinfolk_kernels.linear.gemm_mma import tile_of as mma_tile_of
from kinfolk_kernels.linear.gemm_mma_int8 import (
    FOUR_TILES,
    TALL,
    USUAL,
    MmaInt8Tile,
    fitted,
    gemm_mma_int8,
)
from kinfolk_kernels.linear.gemm_mma_int8 import tile_for as mma_int8_tile_for
from kinfolk_kernels.linear.gemm_mma_int8 import tile_in as mma_int8_tile_in
from kinfolk_kernels.linear.gemv import gemv, warps_for
from kinfolk_kernels.linear.prepare import f16_rows, int8_rows, mma_rows
from kinfolk_kernels.linear.triton_backend import MAX_DOT_ROWS, ROWS_BY_COPIES
from kinfolk_kernels.mma_rows import MmaRows
from kinfolk_kernels.planes import Planes
from kinfolk_kernels.row_forms import most_int8_rows

CACHE = 250e6
"""Bytes of the copies that a launch alternates over: several times the second-level cache."""

ROWS = (1, 2, 4, 8, 16, 24, 32, 64)
PROCESSES = 15
MAX_ERROR = 4e-3
"""Relative error above which a result is wrong, to the product with the rows as they are rounded,
in float64: results are bfloat16, which causes 1.7e-3, weights of float16 products are rounded."""

MORE_STAGES = 6
"""Of the weights of a warp: more than ``gemm_mma`` has, as many as fit."""

SLICE = 2048
"""Rows of a prompt slice."""

Tile = int | Int8Tile | MmaTile | F16Tile
"""The tile of a launch; of dot products, the warps of a program."""

say = sys.stdout.write


def in_order() -> AbstractContextManager[Any]:
    """No launch inside begins before the one before it has ended."""
    return patch.object(launch, "overlaps", lambda device: False)


def tiles(name: str, rows: int, quick: bool) -> list[Tile]:
    """The default tile of a launch, then the others to compare."""
    default = default_tile(name, rows)
    shapes: list[Any] = _shapes(name)
    int8: list[Tile] = [int8_tile_for(shapes)]
    copies: list[Tile] = [mma_int8_tile_in(shapes, *some) for some in (USUAL, TALL)]
    dots: list[Tile] = [warps_for(shapes)]
    few: list[Tile] = [*int8, *copies, mma_tile(shapes, rows)]
    halves: list[Tile] = [mma_tile(shapes, rows), *_other_halves(shapes, rows)]
    others: dict[int, list[Tile]] = {
        1: [1, 2, 4],
        2: [*dots, *int8, *copies],
        3: [*dots, *int8],
        4: [*dots, *int8, *copies],
        8: few,
        16: few,
        24: [*halves, *int8, *_by_copies(shapes, rows)],
        32: [*halves, *_by_copies(shapes, rows)],
        64: halves,
    }
    tried = others.get(rows, [])
    if quick:
        tried = []
    return [default] + [tile for tile in tried if tile != default]


def _by_copies(shapes: list[Any], rows: int) -> list[Tile]:
    """Tiles of several arrangements that have room for ``rows`` int8 rows, a multiple of eight."""
    found: list[Tile] = []
    for some in (USUAL, TALL, FOUR_TILES):
        with suppress(ValueError):
            found.append(fitted(mma_int8_tile_in(shapes, *some), shapes, rows // 8))
    return found


def _other_halves(shapes: list[Any], rows: int) -> list[Tile]:
    """The tile in use with more stages and, where warps multiply alone, with other warps."""
    default = mma_tile(shapes, rows)
    found: list[Tile] = [dataclasses.replace(default, stages=MORE_STAGES)]
    if rows <= 32:
        for warps in ((4, 2), (4, 3)):
            tile = mma_tile_of(shapes, *warps, PAIR_COLUMNS, LEAST_PAIRS)
            found.append(dataclasses.replace(tile, stages=MORE_STAGES))
    return found


def default_tile(name: str, rows: int) -> Tile:
    """The tile of the kernel in use."""
    shapes: list[Any] = _shapes(name)
    if rows <= MAX_DOT_ROWS:
        return warps_for(shapes)
    if rows > most_int8_rows(shapes[0].columns, torch.device("cuda")):
        return mma_tile(shapes, rows)
    copies = rows > MAX_INT8_ROWS or rows in ROWS_BY_COPIES.get(format_of(name), ())
    return mma_int8_tile_for(shapes, -(-rows // 8)) if copies else int8_tile_for(shapes)


def format_of(name: str) -> str:
    """The format of the largest matrix of a launch."""
    return LAUNCHES[name][0][0]


def mma_tile(shapes: list[Any], rows: int) -> MmaTile:
    x = MmaRows.make(rows, shapes[0].columns, torch.device("meta"))
    return mma_tile_for(shapes, x.tiles, x.parts)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The properties of a matrix that tile selection reads."""

    format: str
    rows: int
    columns: int


def _shapes(name: str) -> list[Any]:
    return [_Shape(*some) for some in LAUNCHES[name]]


def label(tile: Tile) -> str:
    if isinstance(tile, int):
        return f"v{tile}"
    kind = {Int8Tile: "i", MmaInt8Tile: "c", MmaTile: "m", F16Tile: "f"}[type(tile)]
    return kind + ",".join(str(n) for n in dataclasses.astuple(tile))


class Product:
    """Prepared rows, and the launch that multiplies them."""

    def __init__(self, rows: int, columns: int) -> None:
        self.x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        self.int8 = int8_rows(self.x)
        self.f16, self.mma = f16_rows(self.x), mma_rows(self.x)
        self.memory = torch.empty(rows * 248320, device="cuda", dtype=torch.bfloat16)

    def __call__(
        self, matrices: list[Planes], tile: Tile, again: bool = False
    ) -> list[torch.Tensor]:
        outs, start = [], 0
        for planes in matrices:
            stop = start + self.x.shape[0] * planes.rows
            outs.append(self.memory[start:stop].view(-1, planes.rows))
            start = stop
        self._launch(matrices, tile, outs, again).run()
        return outs

    def _launch(
        self, matrices: list[Planes], tile: Tile, outs: list[torch.Tensor], again: bool
    ) -> Launch | CudaLaunch:
        if isinstance(tile, MmaInt8Tile):
            return gemm_mma_int8(matrices, int8_rows(self.x) if again else self.int8, outs, tile)
        if isinstance(tile, MmaTile):
            return gemm_mma(matrices, mma_rows(self.x) if again else self.mma, outs, tile)
        if isinstance(tile, F16Tile):
            return gemm_f16(matrices, f16_rows(self.x) if again else self.f16, outs, tile)
        rows = int8_rows(self.x) if again else self.int8
        if isinstance(tile, int):
            return gemv(matrices, rows, outs, tile)
        return gemm_int8(matrices, rows, outs, tile)


def compile_one(job: tuple[str, int, Tile | None, bool]) -> None:
    """Launch kernels on a few rows of a matrix, so that they are in the cache on disk."""
    name, rows, tile, alone = job
    try:
        matrices = launch_of(name, 32)
        with in_order() if alone else nullcontext():
            if tile is None:
                x = torch.randn(80, matrices[0].columns, device="cuda", dtype=torch.bfloat16)
                gemm_large(matrices, x)
            else:
                Product(rows, matrices[0].columns)(matrices, tile, again=True)
    except Exception as error:  # the measurement will report it, too
        say(f"compiling {name}, {rows} rows, {tile}: {type(error).__name__}: {error}\n")


def compile_all(some: tuple[int, ...], quick: bool) -> None:
    jobs: list[tuple[str, int, Tile | None, bool]]
    # 4 and 8 rows share kernels, which are compiled once.
    jobs = [
        (name, rows, t, False)
        for name in LAUNCHES
        for rows in some
        for t in tiles(name, rows, quick)
        if not (rows == 4 and 8 in some)
    ]
    if some == ROWS:
        jobs += [(name, rows, default_tile(name, rows), True) for name in LAUNCHES for rows in ROWS]
        jobs += [(name, SLICE, None, False) for name in LAUNCHES]
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES) as pool:
        for _ in pool.imap_unordered(compile_one, jobs, chunksize=1):
            pass


def check(product: Product, matrices: list[Planes], outs: list[torch.Tensor], tile: Tile) -> float:
    """The largest relative error of the first and of the last rows of every matrix."""
    rounded = isinstance(tile, int | Int8Tile | MmaInt8Tile)
    x = (dequantize(product.int8) if rounded else product.x).double()
    worst = 0.0
    for planes, out in zip(matrices, outs, strict=True):
        for some in (slice(0, 256), slice(max(0, planes.rows - 256) // 4 * 4, planes.rows)):
            expected = x @ planes[some].dequantize().double().T
            result = out[:, some].double()
            error = float((result - expected).norm() / expected.norm())
            worst = error if not error <= worst else worst
    return worst


def measure(name: str, rows: int, quick: bool, copies: list[list[Planes]]) -> dict[str, Any]:
    """Seconds and error of every tile of a launch, and the best."""
    product = Product(rows, copies[0][0].columns)
    seconds_of_tile: dict[str, float] = {}
    errors: dict[str, float] = {}
    best: tuple[float, Any] = (float("inf"), None)
    for tile in tiles(name, rows, quick):
        try:
            product.memory.fill_(torch.nan)
            off = check(product, copies[0], product(copies[0], tile), tile)
            errors[label(tile)] = off
            if not off < MAX_ERROR:
                say(f"  {name}, {rows} rows, {tile}: OFF BY {off:.1e}\n")
                continue

            def run(tile: Any = tile) -> None:
                for matrices in copies:
                    product(matrices, tile)

            seconds = replay_seconds(run, 10) / len(copies)
        except Exception as error:  # go on with the other tiles
            say(f"  {name}, {rows} rows, {tile}: {type(error).__name__}: {error}\n")
            continue
        seconds_of_tile[label(tile)] = seconds
        best = min(best, (seconds, tile), key=lambda pair: pair[0])
    return {"tiles": seconds_of_tile, "errors": errors, "seconds": best[0], "tile": best[1]}


def every_launch(
    copy: float, some: tuple[int, ...], quick: bool
) -> dict[tuple[str, int], dict[str, Any]]:
    results = {}
    for name in LAUNCHES:
        first = launch_of(name)
        nbytes = sum(planes.nbytes for planes in first)
        copies = [first, *(launch_of(name) for _ in range(int(CACHE // nbytes)))]
        for rows in some:
            results[name, rows] = measured = measure(name, rows, quick, copies)
            measured["bytes"] = nbytes
            times = " ".join(f"{t}={s * 1e6:.1f}" for t, s in measured["tiles"].items())
            rate = nbytes / measured["seconds"] / copy
            say(f"{name:13} {rows:2}: {nbytes / copy * 1e6:5.1f} {rate:4.0%} | {times}\n")
        sys.stdout.flush()
    return results


def whole_step(
    rows: int,
    best: dict[tuple[str, int], dict[str, Any]],
    model: list[tuple[str, list[Planes]]],
    alone: bool,
) -> dict[str, float]:
    """Milliseconds of all launches of a step in one graph, in several ways; ``alone``: without that
    for which other kernels are compiled."""
    products = {k: Product(rows, k) for k in (5120, 6144, 17408)}
    default: Callable[[str], Tile] = lambda name: default_tile(name, rows)  # noqa: E731
    in_triton: Callable[[str], Tile] = lambda name: f16_tile_for(_shapes(name), rows)  # noqa: E731
    ways: dict[str, tuple[Callable[[str], Tile], bool, AbstractContextManager[Any]]] = {
        "default": (default, False, nullcontext()),
        "one after the other": (default, False, in_order()),
        "best tiles": (lambda name: best[name, rows]["tile"], False, nullcontext()),
        "rows prepared each time": (default, True, nullcontext()),
    }
    if 1 < rows <= MAX_SUMS_ROWS:
        eights = -(-rows // 8)
        copies: Callable[[str], Tile] = lambda name: mma_int8_tile_for(_shapes(name), eights)  # noqa: E731
        ways["by copies"] = (copies, False, nullcontext())
        ways["by copies, rows prepared each time"] = (copies, True, nullcontext())
    if rows > MAX_INT8_ROWS and not alone:
        ways["in Triton"] = (in_triton, False, nullcontext())
    if alone:
        del ways["one after the other"]
    milliseconds = {}
    for way, (tile_of, again, context) in ways.items():

        def run(tile_of: Callable[[str], Tile] = tile_of, again: bool = again) -> None:
            for name, matrices in model:
                products[matrices[0].columns](matrices, tile_of(name), again)

        try:
            with context:
                milliseconds[way] = replay_seconds(run, 10) * 1e3
        except Exception as error:  # go on with the other ways
            say(f"  {rows} rows, {way}: {type(error).__name__}: {error}\n")
    return milliseconds


def winners(best: dict[tuple[str, int], dict[str, Any]], copy: float) -> dict[str, dict[str, Any]]:
    """For each format and number of rows: the kernel that is fastest in a step's launches whose
    largest matrix has the format, its time over that of the kernel in use, and its rate over that
    of a copy. A kernel is the best of its tiles for each launch."""
    times, found = step(), {}
    for rows in sorted({rows for _, rows in best}):
        for kind in sorted({format_of(name) for name in LAUNCHES}):
            names = [name for name in LAUNCHES if format_of(name) == kind]
            measured = [(times.count(name), best[name, rows]["tiles"]) for name in names]
            defaults = [label(default_tile(name, rows)) for name in names]
            if any(tile not in tiles for tile, (_, tiles) in zip(defaults, measured, strict=True)):
                continue
            used = sum(
                count * tiles[tile] for tile, (count, tiles) in zip(defaults, measured, strict=True)
            )
            totals = {}
            for kernel in sorted({tile[0] for _, tiles in measured for tile in tiles}):
                of_kernel = [
                    (count, [s for tile, s in tiles.items() if tile[0] == kernel])
                    for count, tiles in measured
                ]
                if all(seconds for _, seconds in of_kernel):
                    totals[kernel] = sum(count * min(seconds) for count, seconds in of_kernel)
            kernel = min(totals, key=lambda kernel: totals[kernel])
            nbytes = sum(times.count(name) * best[name, rows]["bytes"] for name in names)
            found[f"{kind}, {rows}"] = {
                "kernel": kernel,
                "of the kernel in use": totals[kernel] / used,
                "of copy": nbytes / totals[kernel] / copy,
            }
    return found


def slice_of_a_prompt(rows: int, model: list[tuple[str, list[Planes]]]) -> dict[str, float]:
    """Milliseconds of a slice without the head: with packed matrices, and of the products of dense
    ones alone."""
    x = {k: torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for k in (5120, 6144, 17408)}
    out = torch.empty(rows, 17408, device="cuda", dtype=torch.bfloat16)
    dense = {k: torch.randn(17408, k, device="cuda", dtype=torch.bfloat16) for k in x}
    launches = [some for name, some in model if name != "head"]

    def packed() -> None:
        for matrices in launches:
            gemm_large(matrices, x[matrices[0].columns])

    def plain() -> None:
        for planes in (planes for matrices in launches for planes in matrices):
            weight = dense[planes.columns][: planes.rows]
            torch.mm(x[planes.columns], weight.T, out=out[:, : planes.rows])

    return {"planes": replay_seconds(packed, 3) * 1e3, "numbers": replay_seconds(plain, 3) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="default tiles only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", default=",".join(str(rows) for rows in ROWS))
    options = parser.parse_args()
    some = tuple(int(rows) for rows in options.rows.split(","))
    torch.manual_seed(0)
    started = time.perf_counter()
    copy = copy_bandwidth()
    say(f"copy {copy / 1e12:.2f} TB/s\n")
    compile_all(some, options.quick)
    say(f"compiled after {time.perf_counter() - started:.0f} s\n")
    sys.stdout.flush()
    say("launch, rows, us of a copy, rate of the best | us of tiles, the default first\n")
    best = every_launch(copy, some, options.quick)
    model = [(name, launch_of(name)) for name in step()]
    nbytes = sum(planes.nbytes for _, matrices in model for planes in matrices)
    steps = {}
    for rows in some:
        steps[rows] = whole_step(rows, best, model, some != ROWS)
        times = ", ".join(f"{way} {ms:.3f}" for way, ms in steps[rows].items())
        rate = nbytes / (steps[rows].get("default", float("inf")) / 1e3) / copy
        say(f"step of {rows:2} rows, ms: {times}; {rate:.0%} of copy\n")
        sys.stdout.flush()
    named = winners(best, copy)
    say("format, rows: the fastest kernel, its time to that in use, rate of a copy\n")
    for what, kernel in named.items():
        ratio, rate = kernel["of the kernel in use"], kernel["of copy"]
        say(f"{what:10}: {kernel['kernel']} {ratio:.3f} {rate:.0%}\n")
    prompt = {}
    if some == ROWS:
        prompt = slice_of_a_prompt(SLICE, model)
        alone = prompt["numbers"]
        say(f"slice of 2048 rows: {prompt['planes']:.1f} ms, products alone {alone:.1f}\n")
    say(f"all after {time.perf_counter() - started:.0f} s\n")
    if options.json:
        launches = {
            f"{name}, {rows}": {
                "us": {tile: s * 1e6 for tile, s in measured["tiles"].items()},
                "of copy": {
                    tile: measured["bytes"] / s / copy for tile, s in measured["tiles"].items()
                },
                "errors": measured["errors"],
                "best": label(measured["tile"]) if measured["tiles"] else None,
            }
            for (name, rows), measured in best.items()
        }
        result = {"copy": copy, "launches": launches, "winners": named, "steps": steps}
        result["slice"] = prompt
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Quantised matrices times few and many rows, on the shapes of a dense 27B: time against reading.

    PYTHONPATH=kernels python benchmarks/kernels/linear.py [--json FILE] [--quick]

For 1, 4, 16 and 64 rows every launch of a step is tried in several tiles; each rotates over enough
copies to leave the cache, inside one CUDA graph. Then all launches of a step in one graph: with the
default tiles, with the best ones, with the rows prepared before each launch, and with launches that
start early. Last, a slice of 2048 rows. Rates are bytes of planes a second, beside the bandwidth of
a copy measured in the same run. Kernels are compiled first, in several processes. A tile that fails
or whose result is off is reported and left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matrices import LAUNCHES, launch_of, step
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.linear.gemm_large import gemm_large
from kinfolk_kernels.linear.gemm_small import SmallTile, gemm_small
from kinfolk_kernels.linear.gemm_small import tile_for as small_tile_for
from kinfolk_kernels.linear.gemv import MAX_ROWS, GemvTile, gemv
from kinfolk_kernels.linear.gemv import tile_for as few_tile_for
from kinfolk_kernels.linear.prepare import half_rows, int8_rows
from kinfolk_kernels.planes import Planes

CACHE = 300e6
"""Bytes of copies a launch rotates over: several times the second-level cache."""

ROWS = (1, 4, 16, 64)
PROCESSES = 15
FEW = [GemvTile(g, w, t) for g, w, t in ((1, 1, 1), (2, 1, 1), (1, 1, 3), (1, 2, 2), (1, 4, 1))]
FEWER = [GemvTile(1, 1, 1), GemvTile(1, 4, 1)]
SMALL = [SmallTile(w, s, t) for w, s, t in ((4, 1, 1), (4, 1, 2), (4, 2, 2), (4, 4, 2), (8, 2, 1))]
SMALLER = [SmallTile(4, 1, 1), SmallTile(4, 4, 1)]
PREFETCH = 64
OFF = 2e-2
"""Relative error that no rounding explains: int8 rows make 7e-3 of normal numbers."""

SLICE = 2048
"""Rows of a slice of a prompt."""

Tile = GemvTile | SmallTile
say = sys.stdout.write


def tiles(name: str, rows: int, quick: bool) -> list[Tile]:
    """The default of a launch, then what is tried beside it."""
    default = default_tile(name, rows)
    tried: dict[int, list[Any]] = {1: FEW, 4: FEWER, 16: SMALL, 64: SMALLER}
    return [default] + [tile for tile in tried[rows] if tile != default and not quick]


def default_tile(name: str, rows: int) -> Tile:
    shapes: list[Any] = [_Shape(n, k) for _, n, k in LAUNCHES[name]]
    return few_tile_for(shapes) if rows <= MAX_ROWS else small_tile_for(shapes)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What tiles are chosen by."""

    rows: int
    columns: int


class Product:
    """Rows, prepared, and what multiplies them."""

    def __init__(self, rows: int, columns: int) -> None:
        self.x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        self.few = rows <= MAX_ROWS
        self.prepared: Any = self.prepare()
        self.memory = torch.empty(rows * 248320, device="cuda", dtype=torch.bfloat16)

    def prepare(self) -> Any:
        return int8_rows(self.x) if self.few else half_rows(self.x)

    def __call__(
        self, matrices: list[Planes], tile: Any = None, again: bool = False
    ) -> list[torch.Tensor]:
        outs, start = [], 0
        for planes in matrices:
            stop = start + self.x.shape[0] * planes.rows
            outs.append(self.memory[start:stop].view(-1, planes.rows))
            start = stop
        rows = self.prepare() if again else self.prepared
        (gemv if self.few else gemm_small)(matrices, rows, outs, tile).run()
        return outs


def compile_one(job: tuple[str, int, Any]) -> None:
    """Launch kernels on a few rows of a matrix, so that they are in the cache on disk."""
    name, rows, tile = job
    try:
        matrices = launch_of(name, 48)
        if rows == SLICE:
            x = torch.randn(80, matrices[0].columns, device="cuda", dtype=torch.bfloat16)
            for planes in matrices:
                gemm_large(planes, x, x.new_empty(80, planes.rows))
        else:
            Product(rows, matrices[0].columns)(matrices, tile, again=True)
    except Exception as error:  # the measurement says what failed
        say(f"compiling {name}, {rows} rows, {tile}: {type(error).__name__}: {error}\n")


def compile_all(quick: bool) -> None:
    jobs: list[tuple[str, int, Any]] = [(name, SLICE, None) for name in LAUNCHES]
    jobs += [(name, 1, early(default_tile(name, 1))) for name in LAUNCHES]
    jobs += [
        (name, rows, t) for name in LAUNCHES for rows in ROWS for t in tiles(name, rows, quick)
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES) as pool:
        for _ in pool.imap_unordered(compile_one, jobs, chunksize=1):
            pass


def early(tile: Tile) -> GemvTile:
    assert isinstance(tile, GemvTile)
    return dataclasses.replace(tile, prefetch=PREFETCH)


def check(product: Product, matrices: list[Planes], outs: list[torch.Tensor]) -> float:
    """Relative error of the first rows of every matrix."""
    worst = 0.0
    for planes, out in zip(matrices, outs, strict=True):
        some = planes[: min(planes.rows, 256)]
        expected = product.x.double() @ some.dequantize().double().T
        found = out[:, : some.rows].double()
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    return worst


def measure(name: str, rows: int, quick: bool, copies: list[list[Planes]]) -> dict[str, Any]:
    """Seconds of every tile of a launch, and the best."""
    product = Product(rows, copies[0][0].columns)
    found: dict[str, float] = {}
    best: tuple[float, Any] = (float("inf"), None)
    for tile in tiles(name, rows, quick):
        try:
            product.memory.fill_(torch.nan)
            off = check(product, copies[0], product(copies[0], tile))
            if not off < OFF:
                say(f"  {name}, {rows} rows, {tile}: OFF BY {off:.1e}\n")
                continue

            def run(tile: Any = tile) -> None:
                for matrices in copies:
                    product(matrices, tile)

            seconds = replay_seconds(run, 10) / len(copies)
        except Exception as error:  # the others are still worth knowing
            say(f"  {name}, {rows} rows, {tile}: {type(error).__name__}: {error}\n")
            continue
        found[str(dataclasses.astuple(tile))] = seconds
        best = min(best, (seconds, tile), key=lambda pair: pair[0])
    return {"tiles": found, "seconds": best[0], "tile": best[1]}


def every_launch(copy: float, quick: bool) -> dict[tuple[str, int], dict[str, Any]]:
    results = {}
    for name in LAUNCHES:
        first = launch_of(name)
        nbytes = sum(planes.nbytes for planes in first)
        copies = [first, *(launch_of(name) for _ in range(int(CACHE // nbytes)))]
        for rows in ROWS:
            results[name, rows] = found = measure(name, rows, quick, copies)
            rate = nbytes / found["seconds"]
            times = " ".join(f"{t}={s * 1e6:.1f}" for t, s in found["tiles"].items())
            say(
                f"{name:13} {rows:3} rows: {found['seconds'] * 1e6:6.1f} us "
                f"{rate / 1e12:.2f} TB/s {rate / copy:4.0%} | {times}\n"
            )
        sys.stdout.flush()
    return results


def whole_step(
    rows: int, best: dict[tuple[str, int], dict[str, Any]], model: list[tuple[str, list[Planes]]]
) -> dict[str, float]:
    """Milliseconds of all launches of a step in one graph, in several ways."""
    products = {k: Product(rows, k) for k in (5120, 6144, 17408)}
    ways: dict[str, tuple[Callable[[str], Any], bool]] = {
        "default tiles": (lambda name: None, False),
        "best tiles": (lambda name: best[name, rows]["tile"], False),
        "best tiles, rows prepared each time": (lambda name: best[name, rows]["tile"], True),
    }
    if rows == 1:
        ways["default tiles, early launches"] = (lambda name: early(default_tile(name, 1)), False)
    found = {}
    for way, (tile_of, again) in ways.items():

        def run(tile_of: Callable[[str], Any] = tile_of, again: bool = again) -> None:
            for name, matrices in model:
                products[matrices[0].columns](matrices, tile_of(name), again)

        try:
            found[way] = replay_seconds(run, 10) * 1e3
        except Exception as error:  # early launches need what not every driver has
            say(f"  {rows} rows, {way}: {type(error).__name__}: {error}\n")
    return found


def slice_of_a_prompt(rows: int, model: list[tuple[str, list[Planes]]]) -> dict[str, float]:
    """Milliseconds of a slice without the head: with matrices in planes, and the products alone."""
    x = {k: torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for k in (5120, 6144, 17408)}
    out = torch.empty(rows, 17408, device="cuda", dtype=torch.bfloat16)
    dense = {k: torch.randn(17408, k, device="cuda", dtype=torch.bfloat16) for k in x}
    matrices = [planes for name, some in model for planes in some if name != "head"]

    def packed() -> None:
        for planes in matrices:
            gemm_large(planes, x[planes.columns], out[:, : planes.rows])

    def plain() -> None:
        for planes in matrices:
            weight = dense[planes.columns][: planes.rows]
            torch.mm(x[planes.columns], weight.T, out=out[:, : planes.rows])

    return {"planes": replay_seconds(packed, 3) * 1e3, "numbers": replay_seconds(plain, 3) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="default tiles only")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.perf_counter()
    copy = copy_bandwidth()
    say(f"copy {copy / 1e12:.2f} TB/s\n")
    compile_all(options.quick)
    say(f"compiled after {time.perf_counter() - started:.0f} s\n")
    sys.stdout.flush()
    best = every_launch(copy, options.quick)
    model = [(name, launch_of(name)) for name in step()]
    nbytes = sum(planes.nbytes for _, matrices in model for planes in matrices)
    steps = {}
    for rows in ROWS:
        steps[rows] = whole_step(rows, best, model)
        for way, ms in steps[rows].items():
            rate = nbytes / ms * 1e3
            say(f"step of {rows:2} rows, {way}: {ms:.3f} ms, {rate / 1e12:.2f} TB/s, ")
            say(f"{rate / copy:.0%} of copy, {len(model)} launches, {nbytes / 1e9:.2f} GB\n")
        sys.stdout.flush()
    prompt = slice_of_a_prompt(SLICE, model)
    say(f"slice of 2048 rows: {prompt['planes']:.1f} ms, products alone {prompt['numbers']:.1f}\n")
    say(f"all after {time.perf_counter() - started:.0f} s\n")
    if options.json:
        launches = {f"{name}, {rows}": found["tiles"] for (name, rows), found in best.items()}
        result = {"copy": copy, "launches": launches, "steps": steps, "slice": prompt}
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

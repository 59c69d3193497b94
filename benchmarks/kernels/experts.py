"""Router and experts of one layer, in the shapes of released models: time against lower bounds.

    python benchmarks/kernels/experts.py [--rows 1 16] [--shape NAME]… [--way NAME]… [--json FILE]

A line has a shape, a number of rows, and the microseconds of a whole step and of each launch. A
step consists of the router's product, the choice and the experts' products. Lines with `router`
time the router by itself, without tensor cores or with several tiles, and its launches. One CUDA
graph holds several steps with different rows, so that the experts of one step are not in the cache
for the next. The floor is the larger of two times: reading the planes of the distinct experts at
the copy bandwidth, and multiplying at the matrix rate, both measured in the same run. If both kinds
of kernels can run, by pairs and by groups of pairs, both are timed, and pairs also with the shared
expert if the model has one, groups also with rows in int8, in blocks of 8 to 32 pairs, and in CUDA
C++; `*` marks the one that the op chooses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.act_and_mul.op import Activation
from kinfolk_kernels.cuda_source import CudaLaunch, unavailable
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import GroupTile, group_launches
from kinfolk_kernels.experts.int8_group_launches import eights_for, int8_group_launches
from kinfolk_kernels.experts.mma_group_launches import mma_group_launches
from kinfolk_kernels.experts.op import ExpertsArguments, SharedExpert
from kinfolk_kernels.experts.pair_launches import pair_launches
from kinfolk_kernels.experts.triton_backend import INT8_GROUPED_ROWS, PAIRED_ROWS
from kinfolk_kernels.int8_rows import with_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.prepare import int8_rows
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import PlanesStack, unpack
from kinfolk_kernels.route.op import RouteArguments, Score
from kinfolk_kernels.route.triton_backend import (
    MAX_FEW_ROWS,
    ROUTE_TILE,
    RouteTile,
    choose,
    empty_parts,
    logits_of_many,
    route_launches,
)
from kinfolk_kernels.row_forms import worth_int8

CACHE = 400e6
"""Bytes that the steps of a graph read: several times the second-level cache."""

FEWEST_STEPS, MOST_STEPS = 8, 32
"""Steps of a graph: enough to make the time of its start negligible."""

SORTING = ("sort_kernel", "count_kernel", "scan_kernel", "place_kernel")
"""Kernels that sort pairs by expert; they follow each other."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a layer; ``upper`` and ``lower``: formats of gate and up, and of down."""

    experts: int
    channels: int
    width: int
    upper: str
    lower: str
    score: Score
    activation: Activation
    shared: tuple[str, str] | None = None
    """Formats of the shared expert: gate and up, and down."""
    top_k: int = 8


SHAPES = {
    "35B-A3B": Shape(256, 512, 2048, "Q4_K", "Q6_K", "softmax", "silu", ("Q8_0", "Q8_0")),
    "Laguna-XS.2": Shape(256, 512, 2048, "Q4_K", "Q4_K", "sigmoid", "silu", ("Q4_K", "Q6_K")),
    "26B-A4B": Shape(128, 704, 2816, "Q4_K", "Q5_0", "softmax", "gelu_tanh"),
}


TILES = {
    "groups": None,
    "64 pairs": (GroupTile(64, 64, 4, 3), GroupTile(128, 64, 8, 3)),
    "8 warps": (GroupTile(64, 128, 4, 3), GroupTile(128, 128, 8, 3)),
    "2 stages": (GroupTile(64, 128, 4, 2), GroupTile(64, 128, 4, 2)),
}
"""Tiles for many rows: the default ones, and others to compare."""

WARPGROUPS = "warpgroups"
"""Many rows by the kernel in CUDA C++."""

FEW_ROWS = "few rows"
"""The router without tensor cores, for up to ``MAX_FEW_ROWS``."""

ROUTERS = {
    "64 x 32": ROUTE_TILE,
    "64 x 64": RouteTile(experts=64),
    "4 steps": RouteTile(steps=4, stages=4),
    "4 stages": RouteTile(stages=4),
    "64 x 16": RouteTile(experts=16),
}
"""Tiles of the router for many rows: the default one, and others to compare."""

INT8_GROUPS = {"int8 8": 1, "int8 16": 2, "int8 24": 3, "int8 32": 4}
"""Groups of pairs with rows in int8: eights of pairs in a block."""

MOST_INT8_ROWS = 512

WAYS = ("beside", "pairs", *INT8_GROUPS, *TILES, WARPGROUPS)
"""Kinds of kernels."""


def random_stack(
    name: str, experts: int, rows: int, columns: int, device: str = "cuda"
) -> PlanesStack:
    """Planes of random codes, whose numbers have a variance of about 1 / columns."""
    planes = empty(name, experts * rows, columns, device)
    for plane in planes.tensors:
        plane.random_(-(2**31), 2**31 - 1)
    if planes.scales is not None:
        planes.scales.bitwise_and_(0x1F1F1F1F)
    halves = torch.rand(*planes.supers.shape, 2, device=device) * 0.01
    planes.supers.copy_(halves.half().view(torch.int32).squeeze(-1))
    size = float(unpack(planes[:4096]).std()) * columns**0.5
    planes.supers.copy_((planes.supers.view(torch.float16) / size).view(torch.int32))
    return planes.stacked(experts)


def random_layer(shape: Shape) -> ExpertsArguments[PlanesStack]:
    upper = random_stack(shape.upper, shape.experts, 2 * shape.channels, shape.width)
    return ExpertsArguments(
        upper.part(0, shape.channels),
        upper.part(shape.channels, 2 * shape.channels),
        random_stack(shape.lower, shape.experts, shape.width, shape.channels),
        torch.randperm(shape.experts, device="cuda"),
        shape.activation,
        shape.top_k,
        torch.float16,
    )


def random_shared(shape: Shape, formats: tuple[str, str]) -> SharedExpert:
    gate, up = (random_stack(formats[0], 1, shape.channels, shape.width)[0] for _ in range(2))
    down = random_stack(formats[1], 1, shape.width, shape.channels)[0]
    return SharedExpert(gate, up, down, torch.randn(shape.width, device="cuda") / shape.width)


@dataclass
class Step:
    """Rows of a step, and the tensors derived from them."""

    x: torch.Tensor
    choice: Choice
    y: torch.Tensor

    @staticmethod
    def make(shape: Shape, rows: int) -> Step:
        x = torch.randn(rows, shape.width, device="cuda").half()
        ids = torch.zeros(rows, shape.top_k, dtype=torch.int64, device="cuda")
        weights = torch.zeros(rows, shape.top_k, device="cuda")
        return Step(x, Choice(ids, weights), torch.empty_like(x).float())

    def router_launches(self, router: RouteArguments, way: str) -> list[Launch]:
        ids, weights = self.choice.ids, self.choice.weights
        if way == FEW_ROWS:
            return route_launches(router, self.x, ids, weights)
        tile, (experts, width) = ROUTERS[way], router.weight.shape
        logits = empty_parts(len(self.x), width, experts, self.x.device, tile)
        product = logits_of_many(self.x, router.weight, logits, tile)
        return [product, choose(router, logits, ids, weights)]

    def route(self, router: RouteArguments) -> None:
        few = self.x.shape[0] <= MAX_FEW_ROWS
        run_all(self.router_launches(router, FEW_ROWS if few else next(iter(ROUTERS))))

    def launches(self, layer: ExpertsArguments[PlanesStack], way: str) -> list[Launch | CudaLaunch]:
        if way in TILES:
            return list(group_launches(self.x, self.choice, layer, self.y, TILES[way]))
        if way == WARPGROUPS:
            return list(mma_group_launches(self.x, self.choice, layer, self.y))
        # The norm before also stores few rows as int8.
        x = with_int8(self.x, int8_rows(self.x)) if worth_int8(self.x) else self.x
        if way in INT8_GROUPS:
            return list(int8_group_launches(x, self.choice, layer, self.y, eights=INT8_GROUPS[way]))
        return list(pair_launches(x, self.choice, layer, self.y))


def matrix_rate() -> float:
    """Operations a second of a large product of float16."""
    a, b = (torch.randn(8192, 8192, device="cuda").half() for _ in range(2))
    times = []
    for _ in range(8):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ b
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return 2 * 8192**3 / statistics.median(times[3:])


def each(steps: Sequence[Callable[[], None]], replays: int = 10) -> float:
    """Seconds a step."""

    def all_of_them() -> None:
        for step in steps:
            step()

    return replay_seconds(all_of_them, replays) / len(steps)


def run_all(launches: Sequence[Launch | CudaLaunch]) -> None:
    for launch in launches:
        launch.run()


def stages(launches: Sequence[Launch | CudaLaunch]) -> dict[str, slice]:
    """The launches that are timed separately, by name. Those that sort are timed together.

    The scan overwrites its counts: repeated without the count launch, it would send later launches
    out of bounds. Other launches write nothing that they read.
    """
    names = [name_of(launch) for launch in launches]
    sorting = [i for i, name in enumerate(names) if name in SORTING]
    separate = {f"{i} {name}": slice(i, i + 1) for i, name in enumerate(names) if i not in sorting}
    return {"sort": slice(sorting[0], sorting[-1] + 1), **separate} if sorting else separate


def name_of(launch: Launch | CudaLaunch) -> str:
    return launch.source.kernel if isinstance(launch, CudaLaunch) else launch.kernel.__name__


def routers(steps: Sequence[Step], router: RouteArguments) -> dict[str, dict[str, float]]:
    """Seconds of the router and of its launches, for each way."""
    times = {}
    few = [FEW_ROWS] if len(steps[0].x) <= MAX_FEW_ROWS else []
    for way in (*few, *ROUTERS):
        launches = [step.router_launches(router, way) for step in steps]
        times[way] = {"all": each([lambda m=m: run_all(m) for m in launches])}  # type: ignore[misc]
        for i, launch in enumerate(launches[0]):
            seconds = each([lambda m=m, i=i: m[i].run() for m in launches])  # type: ignore[misc]
            times[way][launch.kernel.__name__] = seconds
    return times


def measure(
    shape: Shape,
    layer: ExpertsArguments[PlanesStack],
    shared: SharedExpert | None,
    router: RouteArguments,
    rows: int,
    rates: tuple[float, float],
    named: Sequence[str] = (),
) -> dict[str, object]:
    """Times of a step of ``rows`` rows and of its launches, for each kind of kernels, or for those
    that are ``named``, without the router's."""
    one = sum(stack.nbytes for stack in (layer.gate, layer.up, layer.down)) / shape.experts  # type: ignore[union-attr]
    count = int(min(MOST_STEPS, max(FEWEST_STEPS, CACHE // (one * shape.top_k * rows) + 1)))
    steps = [Step.make(shape, rows) for _ in range(count)]
    for step in steps:
        step.route(router)
    distinct = statistics.mean(len(step.choice.ids.unique()) for step in steps)
    work = 2 * 3 * rows * shape.top_k * shape.channels * shape.width
    floor = max(distinct * one / rates[0], work / rates[1])
    timing: dict[str, object] = {"distinct": distinct, "floor": floor, "ways": {}}
    timing["router"] = {} if named else routers(steps, router)
    results = {}
    for way in named or WAYS:
        most = {"beside": 64, "pairs": 64, **dict.fromkeys(INT8_GROUPS, MOST_INT8_ROWS)}
        if rows > most.get(way, rows) or (way == "beside" and shared is None):
            continue
        if rows <= 64 and (way == WARPGROUPS or TILES.get(way) is not None):
            continue
        if way == WARPGROUPS and unavailable(steps[0].x.device):
            continue
        taken = replace(layer, shared=shared) if way == "beside" else layer
        step_launches = [step.launches(taken, way) for step in steps]

        def run(step: Step, launches: list[Launch | CudaLaunch]) -> None:
            step.route(router)
            run_all(launches)

        whole = each(
            [lambda s=s, m=m: run(s, m) for s, m in zip(steps, step_launches, strict=True)]
        )  # type: ignore[misc]
        parts = {
            name: each([lambda m=m, s=span: run_all(m[s]) for m in step_launches])  # type: ignore[misc]
            for name, span in stages(step_launches[0]).items()
        }
        results[way] = steps[0].y.clone()
        assert results[way].isfinite().all(), (shape, rows, way)
        timing["ways"][way] = {"seconds": whole, "share": floor / whole, "launches": parts}  # type: ignore[index]
    groups = results.get("groups")
    for way in ("pairs", *INT8_GROUPS, WARPGROUPS):
        if groups is not None and way in results:
            difference = float((results[way] - groups).norm() / groups.norm())
            timing[f"difference, {way}"] = difference
            assert difference < 5e-2, (shape, rows, timing)
    return timing


def report(title: str, rows: int, timing: dict[str, object]) -> str:
    few = "beside" if "beside" in timing["ways"] else "pairs"  # type: ignore[operator]
    many = WARPGROUPS if WARPGROUPS in timing["ways"] else "groups"  # type: ignore[operator]
    taken = few if rows <= PAIRED_ROWS else many
    if PAIRED_ROWS < rows <= INT8_GROUPED_ROWS:
        eights = eights_for(rows * SHAPES[title].top_k, SHAPES[title].experts)
        taken = f"int8 {8 * eights}"
    lines = [
        f"{title:12} {rows:4} rows: {timing['distinct']:5.1f} distinct experts, "
        f"floor {timing['floor'] * 1e6:.1f} us"  # type: ignore[operator]
    ]
    for way, times in timing["router"].items():  # type: ignore[attr-defined]
        parts = ", ".join(f"{name} {t * 1e6:.1f}" for name, t in times.items() if name != "all")
        taken_router = FEW_ROWS if rows <= MAX_FEW_ROWS else next(iter(ROUTERS))
        mark = "*" if way == taken_router else " "
        lines.append(f"  {mark} router {way:10} {times['all'] * 1e6:5.1f} us; {parts}")
    for way, times in timing["ways"].items():  # type: ignore[attr-defined]
        parts = ", ".join(f"{name} {t * 1e6:.1f}" for name, t in times["launches"].items())
        mark = "*" if way == taken else " "
        lines.append(
            f"  {mark} {way:9} {times['seconds'] * 1e6:7.1f} us, "
            f"{times['share']:.0%} of floor; {parts}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 32, 64, 128, 512, 2048])
    parser.add_argument("--shape", choices=SHAPES, nargs="*", default=list(SHAPES))
    parser.add_argument("--way", choices=WAYS, nargs="*", default=[], help="default: all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rates = (copy_bandwidth(), matrix_rate())
    say = sys.stdout.write
    say(f"copy {rates[0] / 1e12:.2f} TB/s, float16 products {rates[1] / 1e12:.0f} TFLOP/s\n")
    table: dict[str, dict[int, object]] = {}
    for title in options.shape:
        shape = SHAPES[title]
        layer = random_layer(shape)
        matrix = torch.randn(shape.experts, shape.width, device="cuda") / shape.width**0.5
        router = RouteArguments(matrix, shape.score, shape.top_k, torch.float16)
        shared = random_shared(shape, shape.shared) if shape.shared else None
        table[title] = {}
        for rows in options.rows:
            table[title][rows] = timing = measure(
                shape, layer, shared, router, rows, rates, options.way
            )
            say(report(title, rows, timing))
            sys.stdout.flush()
    if options.json:
        result = {"copy": rates[0], "matrix": rates[1], "layers": table}
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

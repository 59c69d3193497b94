"""What ``fetch`` saves by prefetching while records come: layers of one row, one behind the other.

    python benchmarks/kernels/prefetch.py [--shape NAME] [--missed 0 1 2] [--json FILE]
    TRITON_INTERPRET=1 python benchmarks/kernels/prefetch.py --tiny       to try it, without a GPU

A layer is ``fetch``, the experts with the shared one, and the matrices that the next layer begins
with, in the formats of a published 35B-A3B. Each layer has memory of its own, so that no weight is
in the second-level cache by chance. Printed are microseconds of a layer: if nothing is prefetched,
if near records are, and if the next weights are too. Predictions are of an H100.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from experts import SHAPES, Shape, random_stack
from far import TINY, Layer, Report, copy_rate, home, random_stacks, record_of, seconds, views

from kinfolk_kernels.experts.op import ExpertsArguments, SharedExpert
from kinfolk_kernels.experts.triton_backend import experts
from kinfolk_kernels.fetch import triton_backend as fetching
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.int8_rows import with_int8
from kinfolk_kernels.linear.prepare import int8_rows
from kinfolk_kernels.linear.triton_backend import products
from kinfolk_kernels.planes import Planes, PlanesStack

LAYERS = 20
"""Of a graph, each twice: what one turn misses, the other one has brought out of the bays."""

BEHIND = ((4, "Q8_0"), (2, "Q4_K"))
TINY_BEHIND = ((1, TINY.upper),)
"""The matrices behind: rows in widths of the model, and formats."""

SAVED = {"near records": 2.2, "and the next weights": 5.5}
"""Microseconds of a layer that misses, predicted in NOTES.md."""

ENOUGH_CACHE = 1 << 20
"""Bytes for a device without one, to try the script."""


@dataclass
class Missing:
    """A layer with as many near bays as a row chooses experts, and what comes behind it."""

    fetch: FetchArguments
    experts: ExpertsArguments[PlanesStack]
    behind: tuple[Planes, ...]

    @staticmethod
    def make(layer: Layer, device: str) -> Missing:
        shape, count = layer.shape, layer.shape.experts
        near = torch.empty(shape.top_k, layer.record, dtype=torch.uint8, device=device)
        state = FetchArguments(
            near,
            layer.homes,
            shape.top_k + torch.arange(count, device=device),
            torch.full((shape.top_k,), -1, dtype=torch.int32, device=device),
            torch.zeros(count, device=device),
            torch.zeros(count, dtype=torch.int64, device=device),
            torch.zeros(3, dtype=torch.int64, device=device),
            torch.ones(1, dtype=torch.int32, device=device),
        )
        stacks = views((layer.near.gate, layer.near.up, layer.near.down), near)
        upper, lower = shape.shared or (shape.upper, shape.lower)
        gate, up = (
            random_stack(upper, 1, shape.channels, shape.width, device)[0] for _ in range(2)
        )
        down = random_stack(lower, 1, shape.width, shape.channels, device)[0]
        behind = tuple(
            random_stack(name, 1, widths * shape.width, shape.width, device)[0]
            for widths, name in (TINY_BEHIND if shape is TINY else BEHIND)
        )
        made = replace(
            layer.near,
            **dict(zip(("gate", "up", "down"), stacks, strict=True)),
            bay_of_expert=state.bay_of_expert,
            shared=SharedExpert(gate, up, down),
            far=layer.far,
            rows=state.rows,
        )
        soon = [plane for matrix in (gate, up, down, *behind) for plane in matrix.tensors]
        return Missing(replace(state, next_weights=tuple(soon)), made, behind)


def step_of(layers: Sequence[Missing], missed: int, ahead: bool, device: str) -> Callable[[], None]:
    """All layers, twice; two choices share what is not missed and take turns."""
    top_k, width = layers[0].experts.top_k, layers[0].experts.width
    kept = torch.arange(top_k - missed)
    turns = [
        torch.cat((kept, top_k - missed + turn * missed + torch.arange(missed)))[None].to(device)
        for turn in range(2)
    ]
    weights = torch.rand(1, top_k, device=device)
    x = torch.randn(1, width, device=device).half()
    x = with_int8(x, int8_rows(x))

    def step() -> None:
        for ids in turns:
            for layer in layers:
                fetch = layer.fetch if ahead else replace(layer.fetch, next_weights=())
                fetching.fetch(fetch, ids)
                experts(layer.experts, x, ids, weights)
                products(x, layer.behind)

    return step


def measure(layers: Sequence[Missing], missed: int, report: Report, device: str) -> None:
    cache = fetching.second_level_cache(torch.device(device)) or ENOUGH_CACHE
    before = 0.0
    for what, size, ahead in (
        ("nothing", 0, False),
        ("near records", cache, False),
        ("and the next weights", cache, True),
    ):
        with patch.object(fetching, "second_level_cache", lambda _, size=size: size):
            taken = seconds(step_of(layers, missed, ahead, device), device) / (2 * len(layers))
        predicted = before - SAVED.get(what, 0.0) if missed and before else taken * 1e6
        before = before or taken * 1e6
        report.ratio(f"{missed} missed, prefetched: {what}", taken * 1e6, predicted, "us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="35B-A3B")
    parser.add_argument("--missed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tiny", action="store_true", help="on a CPU, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cpu" if options.tiny else "cuda"
    shape: Shape = TINY if options.tiny else SHAPES[options.shape]
    stacks = random_stacks(shape, device)
    size, report = shape.experts * record_of(stacks), Report()
    with home(size, "torch", device) as memory:
        layer = Layer.make(shape, stacks, memory)
        report.copied(size, copy_rate(memory, device))
        layers = [Missing.make(layer, device) for _ in range(1 if options.tiny else LAYERS)]
        for missed in options.missed:
            measure(layers, missed, report, device)
    if options.json:
        options.json.write_text(json.dumps(report.results, indent=1))
    sys.stdout.flush()


if __name__ == "__main__":
    main()

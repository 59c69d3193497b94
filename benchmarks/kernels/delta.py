"""Slices of a delta net: the time of one layer, in chunks and row after row.

    python benchmarks/kernels/delta.py [--tune] [--json FILE]

One slice from position 0, with the heads of a 27B and of a 35B mixture. Every figure is the median
replay of one CUDA graph. ``--tune`` tries limits of registers, and how many chunks are prepared at
a time. The largest relative error of outputs between the two is printed too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import triton
from delta_rows import HEIGHT, scan_kernel
from timing import replay_seconds

from kinfolk_kernels.device import shared_memory
from kinfolk_kernels.gated_delta.launches import MOST_CHUNKS, DeltaInputs, slices
from kinfolk_kernels.gated_delta.tiles import chunk_tile
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.row_layout import RowLayout, Segment

KEY_HEADS, DIM = 16, 128
SHAPES = {"27B": 48, "35B": 32}
"""Value heads."""

LENGTHS = (64, 128, 512, 2048, 8192)
WARPS = 4
"""Warps of a program of the baseline."""


@dataclass(frozen=True)
class Rows:
    """A slice of one sequence from position 0, without checkpoints."""

    positions: torch.Tensor
    store_rows: torch.Tensor
    store_slots: torch.Tensor
    layout: RowLayout


def rows_of(length: int) -> Rows:
    positions = torch.arange(length, device="cuda")
    segment = Segment(0, 1, 0, length, 0, False)
    layout = RowLayout.of([segment], positions - 1)
    return Rows(positions, positions[:0], positions[:0], layout)


def inputs_of(length: int, heads: int) -> DeltaInputs:
    """Rows as a delta net makes them: q, k and v are parts of one tensor."""
    mixed = torch.randn(length, (2 * KEY_HEADS + heads) * DIM, device="cuda")
    q, k, v = (
        x.unflatten(1, (-1, DIM))
        for x in mixed.split((KEY_HEADS * DIM, KEY_HEADS * DIM, heads * DIM), 1)
    )
    for part, scale in ((q, DIM**-0.5), (k, 1.0)):
        part.copy_(torch.nn.functional.normalize(part, dim=-1) * scale)
    gates = torch.rand(2, length, heads, device="cuda")
    state = torch.zeros(2, heads, DIM, DIM, device="cuda")
    return DeltaInputs(q, k, v, -0.2 * gates[0], gates[1].contiguous(), state)


def row_after_row(inputs: DeltaInputs, out: torch.Tensor, rows: Rows) -> Launch:
    heads, width = inputs.state.shape[1:3]
    return Launch(
        scan_kernel,
        (heads * width // (HEIGHT * WARPS), 1),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            "slices": rows.layout.slices,
            "store_rows": rows.store_rows,
            "store_slots": rows.store_slots,
            "stores": 0,
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {**inputs.shape, "ROWS": HEIGHT * WARPS, "STORES": False},
        WARPS,
    )


def seconds_of(launches: Iterable[Launch]) -> float:
    held = list(launches)
    return replay_seconds(lambda: [launch.run() for launch in held] and None)


def measure(length: int, name: str, tune: bool) -> list[dict[str, object]]:
    inputs, rows = inputs_of(length, SHAPES[name]), rows_of(length)
    expected, out = torch.empty_like(inputs.v), torch.empty_like(inputs.v)
    row_after_row(inputs, expected, rows).run()
    inputs.state.zero_()
    tile = chunk_tile(shared_memory(out.device))
    for launch in slices(inputs, out, rows, tile):
        launch.run()
    error = float((out - expected).norm() / expected.norm())
    lines: list[dict[str, object]] = []

    def add(what: str, launches: Iterable[Launch]) -> None:
        seconds = seconds_of(launches)
        lines.append({"shape": name, "length": length, "what": what, "seconds": seconds})
        sys.stdout.write(f"{name} {length:5} {what:28} {seconds * 1e6:8.1f} us\n")
        sys.stdout.flush()

    add("row after row", [row_after_row(inputs, expected, rows)])
    launches = list(slices(inputs, out, rows, tile))
    add("chunks", launches)
    add("chunks, prepared", launches[::2])
    add("chunks, scanned", launches[1::2])
    sys.stdout.write(f"{name} {length:5} relative error {error:.1e}\n")
    if tune:
        for registers in (128, 168):
            changed = list(slices(inputs, out, rows, replace(tile, registers=registers)))
            add(f"prepared, {registers} registers", changed[::2])
        for most in (MOST_CHUNKS // 4, MOST_CHUNKS // 2, 2 * MOST_CHUNKS):
            add(f"chunks, {most} at a time", slices(inputs, out, rows, tile, most))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="try other parameters at 2048 rows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    lines = []
    for name in SHAPES:
        for length in LENGTHS:
            lines += measure(length, name, options.tune and length == 2048)
    if options.json:
        measured = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "lines": lines,
        }
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()

"""Slices of a delta net: the time of one layer, and the error, for several ways to process chunks.

    python benchmarks/kernels/delta.py [--only NAME...] [--lengths N...] [--json FILE]

One slice from position 0, with the heads of a 27B and of a 35B mixture. Every figure is the median
replay of one CUDA graph. Errors of outputs and of the state are relative to float64 up to 128 rows,
and to float32, row after row, beyond; two with decays of 0 to 0.2, two with a thousandth of them.
Kernels are compiled in twelve processes first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
import triton
from delta_rows import HEIGHT, scan_kernel
from timing import replay_seconds

from kinfolk_kernels.gated_delta.launches import DeltaInputs, slices
from kinfolk_kernels.gated_delta.op import GatedDeltaArguments, gated_delta
from kinfolk_kernels.gated_delta.tiles import ChunkTile
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.row_layout import RowLayout, Segment

KEY_HEADS, DIM = 16, 128
SHAPES = {"27B": 48, "35B": 32}
"""Value heads."""

LENGTHS = (8, 16, 64, 128, 512, 2048, 8192)
MOST_EXACT = 128
"""Most rows of a reference in float64."""

WEAK = 1e-3

CANDIDATES = {
    "pairs": ChunkTile(values=64, warps=4, stages=2),
    "pairs wide": ChunkTile(values=64, warps=4, stages=2, batched=False),
    "pairs 32": ChunkTile(values=32, warps=4, stages=1),
    "one": ChunkTile(values=64, warps=4, stages=3, paired=False),
    "one wide": ChunkTile(values=64, warps=4, stages=2, paired=False, batched=False),
    "one 168": ChunkTile(values=64, warps=4, stages=4, registers=168, paired=False),
    "one 32": ChunkTile(values=32, warps=4, stages=2, paired=False),
}
"""The op takes ``pairs`` for models in float32, ``one`` for those in bfloat16 or float16. Wide: how
chunks are inverted; a number: values of a program that scans, or registers of one that prepares;
the others differ in stages."""

WARPS = 4
"""Warps of a program of the baseline."""


@dataclass(frozen=True)
class Rows:
    """A slice of one sequence from position 0, without checkpoints."""

    positions: torch.Tensor
    parent_row: torch.Tensor
    store_rows: torch.Tensor
    store_slots: torch.Tensor
    layout: RowLayout


def rows_of(length: int) -> Rows:
    positions = torch.arange(length, device="cuda")
    segment = Segment(0, 1, 0, length, 0, False)
    layout = RowLayout.of([segment], positions - 1)
    return Rows(positions, positions - 1, positions[:0], positions[:0], layout)


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


def reference(inputs: DeltaInputs, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and state: by the definition in float64, or where that takes long, in float32."""
    state = torch.zeros_like(inputs.state)
    if inputs.v.shape[0] <= MOST_EXACT:
        heads, width = inputs.shape["HV"], inputs.shape["DK"]
        arguments = GatedDeltaArguments(KEY_HEADS, heads, width, width, torch.float32, state.device)
        state = state.double()
        parts = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta)
        out, _ = gated_delta(arguments, *(x.double() for x in parts), state, rows)
        return out, state
    out = torch.empty_like(inputs.v)
    row_after_row(replace(inputs, state=state), out, rows).run()
    return out, state


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def compile_candidate(name: str, shape: str) -> None:
    """In a process of its own; Triton keeps what it compiles on the disk."""
    inputs, rows = inputs_of(64, SHAPES[shape]), rows_of(64)
    for launch in slices(inputs, torch.empty_like(inputs.v), rows, CANDIDATES[name]):
        launch.run()
    torch.cuda.synchronize()


def measure(length: int, shape: str, names: list[str]) -> list[dict[str, object]]:
    inputs, rows = inputs_of(length, SHAPES[shape]), rows_of(length)
    out, lines = torch.empty_like(inputs.v), []
    weak = replace(inputs, g=inputs.g * WEAK)
    cases = [(case, *reference(case, rows)) for case in (inputs, weak)]
    seconds = seconds_of([row_after_row(inputs, torch.empty_like(out), rows)])
    sys.stdout.write(f"{shape} {length:5} row after row {seconds * 1e6:8.1f} us\n")
    for name in names:
        tile, errors = CANDIDATES[name], []
        for case, expected, end in cases:
            case.state.zero_()
            out.fill_(torch.nan)
            for launch in slices(case, out, rows, tile):
                launch.run()
            errors += [error_of(out, expected), error_of(case.state[1], end[1])]
        launches = list(slices(inputs, out, rows, tile))
        parts = [launches, launches[::2], launches[1::2]]
        times = [seconds_of(part) for part in parts]
        lines.append(
            {"shape": shape, "length": length, "what": name, "seconds": times, "errors": errors}
        )
        together, prepared, scanned = (f"{x * 1e6:7.1f}" for x in times)
        shown = "  ".join(f"{error:.1e}" for error in errors)
        sys.stdout.write(
            f"{shape} {length:5} {name:14} {together} us ({prepared} prepared, {scanned} scanned)  "
            f"errors {shown}\n"
        )
        sys.stdout.flush()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = list(options.only)
    with ProcessPoolExecutor(12, get_context("spawn")) as pool:
        jobs = {
            (name, shape): pool.submit(compile_candidate, name, shape)
            for name in names
            for shape in SHAPES
        }
    for (name, shape), job in jobs.items():
        if job.exception() is not None:
            sys.stdout.write(f"{shape} {name} does not run: {job.exception()}\n")
            names = [other for other in names if other != name]
    torch.manual_seed(0)
    lines = []
    for shape in SHAPES:
        for length in options.lengths:
            lines += measure(length, shape, names)
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

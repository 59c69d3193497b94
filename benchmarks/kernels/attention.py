"""Attention over shuffled blocks, for the attention layers of a dense 27B: time against bandwidth.

    python benchmarks/kernels/attention.py [--tune] [--json FILE]

Decoding reads the keys and values of 16 layers, stored in blocks of all layers as in a model, and
is compared with the copy bandwidth of the same run. Prompt slices are measured in operations a
second. Every figure is the median replay of one CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.codecs import Coded, Stored
from kinfolk_kernels.paged_attention.epilogue import Epilogue
from kinfolk_kernels.paged_attention.launches import Call
from kinfolk_kernels.paged_attention.tiles import Tile, device_of
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments
from kinfolk_kernels.qk_rope_write.triton_backend import qk_rope_write
from kinfolk_kernels.row_layout import RowLayout, Segment
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import StoredKind

LAYERS, HEADS, KV_HEADS, DIM = 16, 24, 4, 256
PAIRS = 32
"""Pairs of numbers of a head that are rotated."""

CONTEXTS = (1024, 4096, 32768, 262144)
STORAGES = ("bf16", "q8_0")
SLICE = 2048
DECODE_TILES = [
    Tile(16, n, warps, stages, programs)
    for n, warps, stages, programs in (
        (32, 4, 3, 4), (32, 4, 2, 4), (32, 4, 4, 4), (64, 4, 2, 4), (64, 4, 3, 4), (64, 8, 2, 4),
        (32, 4, 3, 2), (32, 4, 3, 8),
    )
]  # fmt: skip
PREFILL_TILES = [
    Tile(m, n, warps, stages)
    for m, n, warps, stages in (
        (128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2),
        (64, 32, 4, 3),
    )
]  # fmt: skip


@dataclass(frozen=True)
class Table:
    blocks: torch.Tensor
    chunks: torch.Tensor
    length: torch.Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """``count`` rows of one sequence after ``context`` positions; drafted rows are a chain."""

    positions: torch.Tensor
    limit: torch.Tensor
    ancestors: torch.Tensor
    arena_row: torch.Tensor
    write_row: torch.Tensor
    layout: RowLayout


@dataclass(frozen=True)
class Memory:
    """Sections (keys, values) of every layer, and an unused arena."""

    layers: list[tuple[Stored, Stored]]
    arena: tuple[Stored, Stored]
    blocks: int


def planes(blocks: int, width: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, ...]]:
    """Random keys and values of every layer, in blocks that hold all layers."""
    whole = torch.empty(
        blocks, LAYERS, 2, KV_HEADS, CHUNK_POSITIONS, width, dtype=dtype, device="cuda"
    )
    for piece in whole.flatten().split(2**28):
        if dtype == torch.uint8:
            piece.random_(0, 256)
        elif dtype == torch.float16:
            piece.uniform_(0.005, 0.01)
        else:
            piece.normal_()
    for layer in range(LAYERS):
        yield whole[:, layer, 0], whole[:, layer, 1]


def memory_of(storage: str, blocks: int) -> Memory:
    if storage == "bf16":
        layers: list[tuple[Stored, Stored]] = [
            (k, v) for k, v in planes(blocks, DIM, torch.bfloat16)
        ]
    else:
        codes = planes(blocks, DIM, torch.uint8)
        scales = planes(blocks, DIM // 32, torch.float16)
        layers = [
            (Coded(storage, k, ks), Coded(storage, v, vs))
            for (k, v), (ks, vs) in zip(codes, scales, strict=True)
        ]
    return Memory(layers, layers[0], blocks)


def step_of(memory: Memory, context: int, count: int, drafted: bool) -> tuple[Rows, Table]:
    """The step after ``context`` positions, over shuffled blocks."""
    entries = -(-(context + count) // CHUNK_POSITIONS)
    blocks = torch.randperm(memory.blocks, device="cuda")[:entries].int()
    chunks = torch.arange(entries, device="cuda", dtype=torch.int32)
    positions = torch.arange(context, context + count, device="cuda")
    write = (
        blocks.long()[positions // CHUNK_POSITIONS] * CHUNK_POSITIONS + positions % CHUNK_POSITIONS
    )
    parents = torch.arange(-1, count - 1, device="cuda")
    rows = Rows(
        positions,
        positions,
        torch.zeros_like(positions),
        torch.full_like(positions, -1),
        write[None],
        RowLayout.of([Segment(0, 1, 0, count, context, drafted)], parents),
    )
    length = torch.tensor([entries], device="cuda", dtype=torch.int32)
    return rows, Table(blocks[None], chunks[None], length, (entries,))


def projections(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and gates as views of the result of one product."""
    wide = torch.randn(count, HEADS, 2 * DIM, device="cuda").bfloat16()
    return wide[..., :DIM], wide[..., DIM:]


def attention(
    memory: Memory, context: int, count: int, drafted: bool, layers: int
) -> Callable[[Tile | None], list[torch.Tensor]]:
    """A step of ``layers`` attention layers with gates; with int8 rows if there are few rows."""
    rows, table = step_of(memory, context, count, drafted)
    q, gate = projections(count)
    epilogue = Epilogue(gate, None, torch.float16, int8=count <= 4)

    def step(tile: Tile | None) -> list[torch.Tensor]:
        results = []
        for pools in memory.layers[:layers]:
            scale = DIM**-0.5
            parts = (q, pools, memory.arena, rows, table, None, scale, epilogue)
            call = Call(*parts, device_of(q), tile)
            mixed = call.outputs()
            for launch in call.launches(mixed):
                launch.run()
            results.append(mixed.values)
        return results

    return step


def preparation(memory: Memory, context: int, count: int, layers: int) -> Callable[[], None]:
    """A step of ``qk_rope_write`` in ``layers`` layers."""
    rows, _ = step_of(memory, context, count, False)
    q, _ = projections(count)
    k, v = (torch.randn(count, KV_HEADS, DIM, device="cuda") for _ in range(2))
    norm = HeadNorm(torch.ones(DIM, device="cuda"), 1e-6)
    angle = torch.randn(context + count, PAIRS, device="cuda")
    rope_tables = (angle.cos(), angle.sin())

    def step() -> None:
        for pools in memory.layers[:layers]:
            keys, values = (StoredKind.of(pool) for pool in pools)
            arguments = QKRopeWriteArguments(
                (norm, norm, None), rope_tables, keys, values, True, 0, torch.bfloat16, q.device
            )
            qk_rope_write(arguments, q, k, v, pools, memory.arena, rows)

    return step


def seconds_of(step: Callable[[Tile | None], list[torch.Tensor]], tile: Tile | None) -> float:
    """Seconds of one replay; asserts that ``tile`` gives the results of the default tile."""
    if tile is not None:
        for result, expected in zip(step(tile), step(None), strict=True):
            error = float((result.double() - expected.double()).norm() / expected.double().norm())
            assert error < 5e-3, (tile, error)
    return replay_seconds(lambda: step(tile) and None)


class Report:
    """Prints lines as they are measured, and collects them for a JSON file."""

    def __init__(self) -> None:
        self.copy = copy_bandwidth()
        self.lines: list[dict[str, object]] = []
        sys.stdout.write(f"copy {self.copy / 1e12:.2f} TB/s\n")

    def add(self, name: str, seconds: float, *, nbytes: float = 0, flops: float = 0) -> None:
        line: dict[str, object] = {"name": name, "seconds": seconds}
        text = f"{name:48} {seconds * 1e6:9.1f} us"
        if nbytes:
            floor = nbytes / self.copy
            line |= {"bytes": nbytes, "floor": floor}
            text += f"  {nbytes / seconds / 1e12:5.2f} TB/s, {floor / seconds:4.0%} of copy"
        if flops:
            line["flops"] = flops
            text += f"  {flops / seconds / 1e12:5.0f} TFLOP/s"
        self.lines.append(line)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def stored_bytes(storage: str, positions: int) -> float:
    """Bytes of keys and values of all layers."""
    number = 2.0 if storage == "bf16" else 34 / 32
    return 2 * LAYERS * KV_HEADS * DIM * number * positions


def measure_decode(report: Report, memory: Memory, storage: str, tune: bool) -> None:
    for context in CONTEXTS:
        nbytes = stored_bytes(storage, context)
        step = attention(memory, context - 1, 1, False, LAYERS)
        for tile in [None, *(DECODE_TILES if tune else [])]:
            name = f"{storage} decode at {context}" + (f" {_short(tile)}" if tile else "")
            report.add(name, seconds_of(step, tile), nbytes=nbytes)
    for context in (4096, 32768):
        step = attention(memory, context - 16, 16, True, LAYERS)
        nbytes = stored_bytes(storage, context)
        name = f"{storage} 16 drafted rows at {context}"
        flops = 4 * LAYERS * HEADS * DIM * 16 * context
        report.add(name, seconds_of(step, None), nbytes=nbytes, flops=flops)
    report.add(f"{storage} before attention, 1 row", replay_seconds(preparation(memory, 9, 1, 16)))


def measure_slices(report: Report, memory: Memory, storage: str, tune: bool) -> None:
    for context, layers in ((0, LAYERS), (32768 - SLICE, 2)):
        pairs = SLICE * context + SLICE * (SLICE + 1) // 2
        flops = 4 * layers * HEADS * DIM * pairs
        step = attention(memory, context, SLICE, False, layers)
        offered = PREFILL_TILES if tune and storage == "bf16" else []
        for tile in [None, *offered]:
            name = f"{storage} slice of {SLICE} at {context}, {layers} layers"
            name += f" {_short(tile)}" if tile else ""
            report.add(name, seconds_of(step, tile), flops=flops)
    step = preparation(memory, 9, SLICE, LAYERS)
    # Bytes of projections that are read, and of queries, keys and values that are written.
    numbers = LAYERS * SLICE * DIM * (2 * HEADS * 2 + 2 * KV_HEADS * (4 + 2))
    report.add(f"{storage} before attention, {SLICE} rows", replay_seconds(step), nbytes=numbers)


def _short(tile: Tile) -> str:
    return f"{tile.m}x{tile.n} w{tile.warps} s{tile.stages} p{tile.programs}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="try several tile shapes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    report = Report()
    for storage in STORAGES:
        memory = memory_of(storage, max(CONTEXTS) // CHUNK_POSITIONS + 64)
        measure_decode(report, memory, storage, options.tune)
        measure_slices(report, memory, storage, options.tune)
        del memory
        torch.cuda.empty_cache()
    if options.json:
        measured = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "copy": report.copy,
            "lines": report.lines,
        }
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()

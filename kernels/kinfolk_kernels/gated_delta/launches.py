"""The launches of the gated delta kernels: grids and arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import torch

from kinfolk_kernels.commit_layers import pointers_of
from kinfolk_kernels.gated_delta.advance import advance_kernel
from kinfolk_kernels.gated_delta.chunks import CHUNK_ROWS
from kinfolk_kernels.gated_delta.commit import commit_kernel
from kinfolk_kernels.gated_delta.drafted import drafted_kernel
from kinfolk_kernels.gated_delta.few import FEW_ROWS
from kinfolk_kernels.gated_delta.op import DeltaTrace
from kinfolk_kernels.gated_delta.prepare import ROW_FACTORS, prepare_kernel
from kinfolk_kernels.gated_delta.prepare_drafts import (
    DRAFT_FACTORS,
    MIDDLE_ROWS,
    PATH_ROWS,
    UNPREPARED_ROWS,
    prepare_drafts_kernel,
)
from kinfolk_kernels.gated_delta.scan import scan_kernel
from kinfolk_kernels.gated_delta.tiles import TILES, ChunkTile, DeltaTile
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.row_layout import RowLayout
from kinfolk_kernels.rows import Rows

MOST_CHUNKS = 80
"""Most chunks that are prepared by a launch: those of a slice of 4096 rows and of some others.
Pairs for each take 2.6 MB for 16 key heads and 48 value heads."""

MOST_SHORT = 32
"""Most programs of a head for chunks that slices do not fill; others process several."""

SCAN_SLICES = 4
"""Most programs beside each other for different slices; each processes every fourth."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """The operands of a call, named as in the reference."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor

    @property
    def shape(self) -> dict[str, int]:
        return {
            "HK": self.k.shape[1],
            "HV": self.state.shape[1],
            "DV": self.state.shape[2],
            "DK": self.state.shape[3],
        }

    def pointers(self, *names: str) -> dict[str, torch.Tensor]:
        return {f"{name}_ptr": getattr(self, name) for name in names}

    def strides(self, *names: str) -> dict[str, int]:
        return {f"{name}_row": getattr(self, name).stride(0) for name in names}

    def tiles(self, tile: DeltaTile) -> int:
        """Programs for all heads of a sequence."""
        return self.state.shape[1] * self.state.shape[2] // tile.values


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """What one kernel prepares for another, by chunk or segment."""

    pairs: torch.Tensor
    systems: torch.Tensor
    factors: torch.Tensor

    @property
    def pointers(self) -> dict[str, torch.Tensor]:
        names = ("pairs", "systems", "factors")
        return {f"{name}_ptr": getattr(self, name) for name in names}


class PreparedChunks(PreparedRows):
    """What is prepared for some chunks of C = 64 rows, see ``prepare``: ``pairs`` of k and q,
    float16 [chunks, Hk, 4, C, dk], ``systems``, pairs of T and M, float16 [chunks, Hv, 4, C, C],
    and ``factors`` float32 [chunks, Hv, ROW_FACTORS, C]. Two instead of 4 if there are high parts
    only."""

    @classmethod
    def empty(cls, inputs: DeltaInputs, chunks: int, paired: bool) -> PreparedChunks:
        sizes, device, matrices = inputs.shape, inputs.state.device, 4 if paired else 2
        keys, heads, half = sizes["HK"], sizes["HV"], torch.float16
        pairs = (chunks, keys, matrices, CHUNK_ROWS.value, sizes["DK"])
        systems = (chunks, heads, matrices, CHUNK_ROWS.value, CHUNK_ROWS.value)
        factors = (chunks, heads, ROW_FACTORS.value, CHUNK_ROWS.value)
        return cls(
            torch.empty(pairs, dtype=half, device=device),
            torch.empty(systems, dtype=half, device=device),
            torch.empty(factors, dtype=torch.float32, device=device),
        )


def advance(
    inputs: DeltaInputs,
    out: torch.Tensor,
    rows: Rows,
    tile: DeltaTile = TILES["advance"],
) -> Launch:
    """The launch for certain segments of one row."""
    return Launch(
        advance_kernel,
        (inputs.tiles(tile), rows.layout.spans.shape[0]),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            "spans": rows.layout.spans,
            **_stores(rows),
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {**inputs.shape, "BV": tile.values, "STORES": rows.store_rows.shape[0] > 0},
        tile.warps,
    )


def slices(
    inputs: DeltaInputs,
    out: torch.Tensor,
    rows: Rows,
    tile: ChunkTile,
    most: int = MOST_CHUNKS,
) -> Iterator[Launch]:
    """The launches for certain segments of several rows, two for each ``most`` chunks that the step
    may have."""
    count, entries = inputs.v.shape[0], rows.layout.slices.shape[0]
    # A slice has two rows or more, and may lie across the borders of two chunks that it does not
    # fill.
    chunks = min(count, count // CHUNK_ROWS.value + 2 * min(entries, count // 2))
    prepared = PreparedChunks.empty(inputs, min(chunks, most), tile.paired)
    for begin in range(0, chunks, most):
        end = min(begin + most, chunks)
        yield prepare(inputs, prepared, rows, begin, end, tile)
        yield scan(inputs, prepared, out, rows, begin, end, tile)


def prepare(
    inputs: DeltaInputs, prepared: PreparedChunks, rows: Rows, begin: int, end: int, tile: ChunkTile
) -> Launch:
    """The launch that fills ``prepared`` for the chunks ``begin:end`` of the step."""
    entries = rows.layout.slices.shape[0]
    # As many as chunks of slices that fill the step, and not as many as it can have of short ones.
    programs = min(end - begin, inputs.v.shape[0] // CHUNK_ROWS.value + MOST_SHORT)
    return Launch(
        prepare_kernel,
        (inputs.shape["HV"], programs),
        {
            **inputs.pointers("q", "k", "g", "beta"),
            **prepared.pointers,
            **_table(rows, begin, end),
            **inputs.strides("q", "k", "g", "beta"),
        },
        {
            **{name: inputs.shape[name] for name in ("HK", "HV", "DK")},
            "TABLE": _table_size(entries),
            "BATCHED": tile.batched,
            "PAIRED": tile.paired,
        },
        registers=tile.registers,
    )


def scan(
    inputs: DeltaInputs,
    prepared: PreparedChunks,
    out: torch.Tensor,
    rows: Rows,
    begin: int,
    end: int,
    tile: ChunkTile,
) -> Launch:
    """The launch that carries states over the chunks ``begin:end`` of the step."""
    heads, width = inputs.state.shape[1:3]
    values = gcd(width, tile.values)
    entries = rows.layout.slices.shape[0]
    programs = min(entries, SCAN_SLICES)
    return Launch(
        scan_kernel,
        (heads * width // values, programs),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            **prepared.pointers,
            **_table(rows, begin, end),
            **_stores(rows),
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {
            **inputs.shape,
            "BV": values,
            "TABLE": _table_size(entries),
            "STORES": rows.store_rows.shape[0] > 0,
            "STAGES": tile.stages,
            "PAIRED": tile.paired,
        },
        tile.warps,
    )


class PreparedDrafts(PreparedRows):
    """What is prepared for drafted segments of more than ``UNPREPARED_ROWS`` rows, see
    ``prepare_drafts``: ``pairs`` of k and q, float16 [N, Hk, 4, C, dk], ``systems``, T and M,
    float32 [N, Hv, 2, C, C], and ``factors`` float32 [N, Hv, DRAFT_FACTORS, C]. A step has at most
    so many of them as its rows have room for. Segments of up to half of C = ``PATH_ROWS`` rows use
    the first part of each."""

    @classmethod
    def empty(cls, inputs: DeltaInputs, most: int) -> PreparedDrafts:
        """For a step in which no segment has more than ``most`` rows: nothing if these are few."""
        sizes, device, rows = inputs.shape, inputs.state.device, PATH_ROWS.value
        few = UNPREPARED_ROWS.value
        count = inputs.v.shape[0] // (few + 1) + 1 if most > few else 0
        keys, heads = sizes["HK"], sizes["HV"]
        factors = (count, heads, DRAFT_FACTORS.value, rows)
        return cls(
            torch.empty(count, keys, 4, rows, sizes["DK"], dtype=torch.float16, device=device),
            torch.empty(count, heads, 2, rows, rows, dtype=torch.float32, device=device),
            torch.empty(factors, dtype=torch.float32, device=device),
        )


def drafts(
    inputs: DeltaInputs, out: torch.Tensor, trace: DeltaTrace, layout: RowLayout, tile: ChunkTile
) -> Iterator[Launch]:
    """The launches for drafted segments, which fill ``out`` and ``trace`` of their rows.
    ``tile``: that of chunks of slices on the device; drafted rows are always paired."""
    prepared = PreparedDrafts.empty(inputs, layout.traits.draft_rows)
    if layout.traits.draft_rows > UNPREPARED_ROWS.value:
        yield prepare_drafts(inputs, prepared, trace, layout, tile)
    yield draft(inputs, prepared, out, trace, layout)


def prepare_drafts(
    inputs: DeltaInputs,
    prepared: PreparedDrafts,
    trace: DeltaTrace,
    layout: RowLayout,
    tile: ChunkTile,
) -> Launch:
    """The launch that fills ``prepared``."""
    return Launch(
        prepare_drafts_kernel,
        (inputs.shape["HV"], layout.spans.shape[0]),
        {
            **inputs.pointers("q", "k", "g", "beta"),
            **prepared.pointers,
            "trace_k": trace.k,
            "trace_total": trace.total,
            "spans": layout.spans,
            "path_ptr": layout.path,
            **inputs.strides("q", "k", "g", "beta"),
        },
        {
            **{name: inputs.shape[name] for name in ("HK", "HV", "DK")},
            "LARGE": layout.traits.draft_rows > MIDDLE_ROWS.value,
            "BATCHED": tile.batched,
        },
    )


def draft(
    inputs: DeltaInputs,
    prepared: PreparedDrafts,
    out: torch.Tensor,
    trace: DeltaTrace,
    layout: RowLayout,
    tile: DeltaTile | None = None,
) -> Launch:
    """The launch that computes drafted segments."""
    sizes = (FEW_ROWS.value, UNPREPARED_ROWS.value, MIDDLE_ROWS.value, PATH_ROWS.value)
    most = next(size for size in sizes if layout.traits.draft_rows <= size)
    tile = tile or TILES["few" if most == FEW_ROWS.value else "drafted"]
    return Launch(
        drafted_kernel,
        (inputs.tiles(tile), layout.spans.shape[0]),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            "trace_k": trace.k,
            "trace_d": trace.d,
            "trace_total": trace.total,
            "spans": layout.spans,
            "path_ptr": layout.path,
            **prepared.pointers,
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {**inputs.shape, "BV": tile.values, "MOST": most},
        tile.warps,
        registers=tile.registers,
    )


def commit(
    layers: Sequence[tuple[DeltaTrace, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
    tile: DeltaTile = TILES["commit"],
) -> Launch:
    """The launch that advances the states of up to ``LAYERS_OF_LAUNCH`` layers, given with their
    traces, along the kept rows of drafted segments."""
    traces, states = zip(*layers, strict=True)
    heads, values, keys = states[0].shape[1:]
    return Launch(
        commit_kernel,
        (heads * values // tile.values, path.shape[0], len(layers)),
        {
            **pointers_of("k", [trace.k for trace in traces]),
            **pointers_of("d", [trace.d for trace in traces]),
            **pointers_of("total", [trace.total for trace in traces]),
            **pointers_of("state", states),
            "path_ptr": path,
            "kept_ptr": n_keep,
            "slot_ptr": slot,
            "width": path.shape[1],
        },
        {
            "HK": traces[0].k.shape[1],
            "HV": heads,
            "DK": keys,
            "DV": values,
            "BV": tile.values,
            "T": tile.rows,
            "SEVERAL": len(layers) > 1,
        },
        tile.warps,
    )


def _table(rows: Rows, begin: int, end: int) -> dict[str, torch.Tensor | int]:
    slices = rows.layout.slices
    return {
        "positions": rows.positions,
        "slices": slices,
        "entries": slices.shape[0],
        "begin": begin,
        "end": end,
    }


def _table_size(entries: int) -> int:
    """Few sizes, because each one is compiled."""
    return 16 if entries <= 16 else max(128, 1 << (entries - 1).bit_length())


def _stores(rows: Rows) -> dict[str, torch.Tensor | int]:
    return {
        "store_rows": rows.store_rows,
        "store_slots": rows.store_slots,
        "stores": rows.store_rows.shape[0],
    }

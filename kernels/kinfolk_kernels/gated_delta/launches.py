"""The launches of the gated delta kernels: grids and arguments."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from kinfolk_kernels.gated_delta.advance import advance_kernel
from kinfolk_kernels.gated_delta.commit import commit_kernel
from kinfolk_kernels.gated_delta.drafted import drafted_kernel
from kinfolk_kernels.gated_delta.op import DeltaTrace
from kinfolk_kernels.gated_delta.scan import HEIGHT, scan_kernel
from kinfolk_kernels.gated_delta.tiles import TILES, DeltaTile
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.row_layout import RowLayout
from kinfolk_kernels.rows import Rows

PRECISION = "tf32x3"
"""Three tf32 products: one would lose three digits of a state that accumulates over the text."""


SCAN_WARPS = 4
"""Warps of a program; they share the data of a row. With more warps, a multiprocessor of a large
device would have one or two programs, and all would wait for those with two."""


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


def scan(inputs: DeltaInputs, out: torch.Tensor, rows: Rows, warps: int = SCAN_WARPS) -> Launch:
    """The launch for certain segments of several rows, with up to ``warps`` warps a program."""
    heads, width = inputs.state.shape[1:3]
    warps = gcd(warps, width // HEIGHT)
    return Launch(
        scan_kernel,
        (heads * width // (HEIGHT * warps), rows.layout.slices.shape[0]),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            "slices": rows.layout.slices,
            **_stores(rows),
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {**inputs.shape, "ROWS": HEIGHT * warps, "STORES": rows.store_rows.shape[0] > 0},
        warps,
    )


def draft(
    inputs: DeltaInputs,
    out: torch.Tensor,
    trace: DeltaTrace,
    layout: RowLayout,
    tile: DeltaTile = TILES["drafted"],
) -> Launch:
    """The launch for drafted segments, which fills ``out`` and ``trace`` of their rows."""
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
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {
            **inputs.shape,
            "BV": tile.values,
            "SEVERAL": layout.traits.draft_rows > tile.rows,
            **_block(tile.rows),
        },
        tile.warps,
    )


def commit(
    trace: DeltaTrace,
    state: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
    tile: DeltaTile = TILES["commit"],
) -> Launch:
    """The launch that advances states along the kept rows of drafted segments."""
    heads, values, keys = state.shape[1:]
    return Launch(
        commit_kernel,
        (heads * values // tile.values, path.shape[0]),
        {
            "trace_k": trace.k,
            "trace_d": trace.d,
            "trace_total": trace.total,
            "state_ptr": state,
            "path_ptr": path,
            "kept_ptr": n_keep,
            "slot_ptr": slot,
            "width": path.shape[1],
        },
        {
            "HK": trace.k.shape[1],
            "HV": heads,
            "DK": keys,
            "DV": values,
            "BV": tile.values,
            "T": tile.rows,
            "PRECISION": PRECISION,
        },
        tile.warps,
    )


def _stores(rows: Rows) -> dict[str, torch.Tensor | int]:
    return {
        "store_rows": rows.store_rows,
        "store_slots": rows.store_slots,
        "stores": rows.store_rows.shape[0],
    }


def _block(rows: int) -> dict[str, int | str]:
    """Constants of a block of ``rows`` rows in closed form; ``rows`` is a power of two."""
    return {"T": rows, "LEVELS": rows.bit_length() - 1, "PRECISION": PRECISION}

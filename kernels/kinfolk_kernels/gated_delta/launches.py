"""The launches of the gated delta kernels: grids and arguments from shapes and the step's index."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.gated_delta.advance import advance_kernel
from kinfolk_kernels.gated_delta.commit import commit_kernel
from kinfolk_kernels.gated_delta.drafted import drafted_kernel
from kinfolk_kernels.gated_delta.reference import DeltaTrace
from kinfolk_kernels.gated_delta.slices import prepare_kernel, scan_kernel
from kinfolk_kernels.gated_delta.tiles import TILES, Tile
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.rows import Rows
from kinfolk_kernels.step_index import SLICE_BLOCK, StepIndex

PRECISION = "tf32x3"
"""Plain tf32 loses three digits of a state that is carried through the whole text."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """The tensors of a call, as the reference names them."""

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

    def tiles(self, tile: Tile) -> int:
        """Programs for all heads of a sequence."""
        return self.state.shape[1] * self.state.shape[2] // tile.values


@dataclass(frozen=True, slots=True)
class SliceScratch:
    """What ``prepare`` leaves for ``scan``, of N blocks of T rows: the solved systems and the
    decayed q k float32 [N, Hv, T, T], sums of decays float64 [N, Hv, T]."""

    solved: torch.Tensor
    attend: torch.Tensor
    total: torch.Tensor

    @staticmethod
    def make(blocks: int, heads: int, device: torch.device) -> SliceScratch:
        square = (blocks, heads, SLICE_BLOCK, SLICE_BLOCK)
        return SliceScratch(
            torch.empty(square, device=device),
            torch.empty(square, device=device),
            torch.empty(square[:3], dtype=torch.float64, device=device),
        )

    @property
    def pointers(self) -> dict[str, torch.Tensor]:
        return {
            "solved_ptr": self.solved,
            "attend_ptr": self.attend,
            "total_ptr": self.total,
        }


def advance(
    inputs: DeltaInputs,
    out: torch.Tensor,
    index: StepIndex,
    rows: Rows,
    tile: Tile = TILES["advance"],
) -> Launch:
    """Certain segments of one row."""
    return Launch(
        advance_kernel,
        (inputs.tiles(tile), index.spans.shape[0]),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            "spans": index.spans,
            **_stores(rows),
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {**inputs.shape, "BV": tile.values, "STORES": rows.store_rows.shape[0] > 0},
        tile.warps,
    )


def prepare(
    inputs: DeltaInputs,
    scratch: SliceScratch,
    index: StepIndex,
    tile: Tile = TILES["prepare"],
) -> Launch:
    """Certain segments of several rows, what needs no state."""
    shape = inputs.shape
    shape.pop("DV")
    return Launch(
        prepare_kernel,
        (shape["HV"], index.blocks.shape[0]),
        {
            **inputs.pointers("q", "k", "g", "beta"),
            **scratch.pointers,
            "blocks": index.blocks,
            **inputs.strides("q", "k", "g", "beta"),
        },
        {**shape, **_block(SLICE_BLOCK)},
        tile.warps,
    )


def scan(
    inputs: DeltaInputs,
    scratch: SliceScratch,
    out: torch.Tensor,
    index: StepIndex,
    rows: Rows,
    tile: Tile = TILES["scan"],
) -> Launch:
    """Certain segments of several rows, after ``prepare``."""
    return Launch(
        scan_kernel,
        (inputs.tiles(tile), index.slices.shape[0]),
        {
            **inputs.pointers("q", "k", "v", "beta", "state"),
            "out_ptr": out,
            **scratch.pointers,
            "slices": index.slices,
            **_stores(rows),
            **inputs.strides("q", "k", "v", "beta"),
        },
        {
            **inputs.shape,
            "BV": tile.values,
            "T": SLICE_BLOCK,
            "STORES": rows.store_rows.shape[0] > 0,
            "STAGES": tile.stages,
            "PRECISION": PRECISION,
        },
        tile.warps,
        tile.stages,
    )


def draft(
    inputs: DeltaInputs,
    out: torch.Tensor,
    trace: DeltaTrace,
    index: StepIndex,
    tile: Tile = TILES["drafted"],
) -> Launch:
    """Drafted segments: ``out`` and ``trace`` of their rows."""
    return Launch(
        drafted_kernel,
        (inputs.tiles(tile), index.spans.shape[0]),
        {
            **inputs.pointers("q", "k", "v", "g", "beta", "state"),
            "out_ptr": out,
            "trace_k": trace.k,
            "trace_d": trace.d,
            "trace_total": trace.total,
            "spans": index.spans,
            "path_ptr": index.path,
            **inputs.strides("q", "k", "v", "g", "beta"),
        },
        {
            **inputs.shape,
            "BV": tile.values,
            "SEVERAL": index.draft_rows > tile.rows,
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
    tile: Tile = TILES["commit"],
) -> Launch:
    """Kept rows of drafted segments."""
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
    """Constants of a solved block; ``rows`` is a power of two."""
    return {"T": rows, "LEVELS": rows.bit_length() - 1, "PRECISION": PRECISION}

"""The launches of ``experts`` for many rows: pairs are grouped by expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton

from kinfolk_kernels.act_and_mul.triton_backend import CODES
from kinfolk_kernels.experts import group_kernels, sort_kernels
from kinfolk_kernels.experts.bays import base, places, rows_pointer, switches
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.stacks import Stack, format_of, pointers, type_of
from kinfolk_kernels.launch import Launch

SUM_TILE_COLUMNS = 1024
"""Columns of a program that sums a row's pairs."""

GROUP_ROWS = 256
"""Pairs of a program that sorts, if there are too many for one launch."""

MAX_SMALL_TILE_ROWS = 64
"""Up to this many rows in the step, tiles are small: an expert has few rows."""

FEW_PAIRS = 4096
"""Most pairs that are sorted by one launch, whose programs compare each pair with all."""

PLACED_PAIRS = 16
"""Fewest pairs of a program of that launch."""

MOST_PLACING = 128
"""Most programs of that launch: one for nearly every processor."""

MIN_PAIRS_OF_TALL_BLOCKS = 48
"""Average pairs of an expert from which on blocks hold 128 pairs: with blocks of 64, many experts
would need a second block, which reads the whole matrix again."""


@dataclass(frozen=True, slots=True)
class GroupTile:
    """Matrix rows and pairs that a program multiplies, its warps, and its pipeline stages."""

    rows: int
    pairs: int
    warps: int
    stages: int


def group_launches(
    x: torch.Tensor,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    y: torch.Tensor,
    tiles: tuple[GroupTile, GroupTile] | None = None,
) -> Iterator[Launch]:
    """The launches that compute y float32 [R, W] from x [R, W], in the dtype that gate and up are
    dequantised to. ``tiles`` replaces the default tiles of gate and up, and of down, for tuning;
    both must have the same number of pairs."""
    device, pairs = x.device, choice.ids.numel()
    between = type_of(experts.down)
    each_has = pairs // experts.count
    usual = (
        tile_for(x.shape[0], each_has, x.dtype),
        tile_for(x.shape[0], each_has, between, down=True),
    )
    tile, down_tile = tiles or usual
    order = Order.make(pairs, experts.count, device)
    yield from sort(choice.ids, order, tile.pairs, experts.rows)
    inner = torch.empty(pairs, experts.channels, dtype=between, device=device)
    yield gate_up_groups(x, choice, experts, order, inner, tile)
    # float16 halves the bytes; its inputs had no more precision.
    dtype = between if between == torch.float16 else torch.float32
    each = torch.empty(pairs, experts.width, dtype=dtype, device=device)
    yield down_groups(inner, experts, order, each, down_tile)
    yield add_up(each, choice, experts, y)


def tile_for(rows: int, each_has: int, dtype: torch.dtype, *, down: bool = False) -> GroupTile:
    """The tile for a number of rows, pairs of an expert, and a dtype. The tiles of gate and up and
    of down have the same number of pairs."""
    few = rows <= MAX_SMALL_TILE_ROWS
    if dtype == torch.float32:
        return GroupTile(32, 16, 4, 1) if few else GroupTile(16, 64, 8, 1)
    if few:
        return GroupTile(64, 16, 4, 3)
    if each_has >= MIN_PAIRS_OF_TALL_BLOCKS:
        return GroupTile(64, 128, 4, 3)
    return GroupTile(128, 64, 8, 3) if down else GroupTile(64, 64, 4, 3)


@dataclass(frozen=True, slots=True)
class Order:
    """The arrays of pairs sorted by expert, as ``sort_kernels`` describes them."""

    order: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor

    @staticmethod
    def make(pairs: int, experts: int, device: torch.device) -> Order:
        sizes = (pairs, experts + 1, experts)
        return Order(*(torch.empty(n, dtype=torch.int32, device=device) for n in sizes))

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.order, self.starts, self.ends

    @property
    def arguments(self) -> dict[str, torch.Tensor]:
        return {"order_ptr": self.order, "starts_ptr": self.starts, "ends_ptr": self.ends}

    def blocks(self, size: int) -> int:
        """The largest possible number of blocks of ``size`` pairs."""
        pairs, experts = self.order.shape[0], self.ends.shape[0]
        return min(pairs, pairs // size + min(experts, pairs))


def sort(
    ids: torch.Tensor, order: Order, block: int, rows: torch.Tensor | None = None
) -> Iterator[Launch]:
    """The launches that sort the pairs of ids [R, K] by expert, in blocks of up to ``block``; with
    ``rows`` int32 [1] only those of the first rows."""
    pairs, experts = ids.numel(), order.ends.shape[0]
    size = max(16, triton.next_power_of_2(experts))
    real = {"rows_ptr": ids if rows is None else rows, "pairs": pairs}
    padded = {"TOP_K": ids.shape[1], "PADDED": rows is not None}
    constants = {"E": experts, "SIZE": size, "BLOCK": block, **padded}
    if pairs <= FEW_PAIRS:
        most = max(16, triton.next_power_of_2(pairs))
        placed = max(PLACED_PAIRS, most // MOST_PLACING)
        arguments = {"ids_ptr": ids, **order.arguments, **real}
        few = {**constants, "PAIRS": most, "PLACED": placed}
        grid = (1 + -(-pairs // placed),)
        yield Launch(sort_kernels.sort_kernel, grid, arguments, few, 8 if most > 128 else 4)
        return
    chunks = -(-pairs // GROUP_ROWS)
    counts = torch.empty(chunks, size, dtype=torch.int32, device=ids.device)
    of_chunk = {"SIZE": size, "GROUP_ROWS": GROUP_ROWS, **padded}
    arguments = {"ids_ptr": ids, "counts_ptr": counts, **real}
    yield Launch(sort_kernels.count_kernel, (chunks,), arguments, of_chunk)
    ends = {"starts_ptr": order.starts, "ends_ptr": order.ends}
    arguments = {"counts_ptr": counts, **ends, **real, "chunks": chunks}
    yield Launch(sort_kernels.scan_kernel, (1,), arguments, {**constants, "TILE": 32}, warps=8)
    arguments = {"ids_ptr": ids, "places_ptr": counts, "order_ptr": order.order, **real}
    yield Launch(sort_kernels.place_kernel, (chunks,), arguments, of_chunk, warps=8)


def gate_up_groups(
    x: torch.Tensor,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    order: Order,
    inner: torch.Tensor,
    tile: GroupTile,
) -> Launch:
    """The launch that computes inner [R K, F], in sorted order, from x [R, W]."""
    far = experts.far
    gate = pointers("gate", base(experts.gate, far.gate if far else None), as_bytes=True)
    up = pointers("up", base(experts.up, far.up if far else None), as_bytes=True)
    return Launch(
        group_kernels.group_gate_up_kernel,
        (-(-experts.channels // tile.rows), order.blocks(tile.pairs)),
        {
            "x_ptr": x,
            **order.arguments,
            "bay_ptr": experts.bay_of_expert,
            **gate,
            **up,
            "inner_ptr": inner,
            **places(experts.gate, far.gate if far else None, gate["gate_q"], as_bytes=True),
        },
        {
            "K": experts.width,
            "F": experts.channels,
            "TOP_K": choice.top_k,
            "ACTIVATION": CODES[experts.activation],
            **_constants(experts, experts.gate, tile),
        },
        tile.warps,
        tile.stages,
    )


def down_groups(
    inner: torch.Tensor,
    experts: ExpertsArguments[Stack],
    order: Order,
    each: torch.Tensor,
    tile: GroupTile,
) -> Launch:
    """The launch that computes each [R K, W], in the order before sorting, from inner [R K, F]."""
    far = experts.far.down if experts.far else None
    down = pointers("down", base(experts.down, far), as_bytes=True)
    return Launch(
        group_kernels.group_down_kernel,
        (-(-experts.width // tile.rows), order.blocks(tile.pairs)),
        {
            "inner_ptr": inner,
            **order.arguments,
            "bay_ptr": experts.bay_of_expert,
            **down,
            "pairs_ptr": each,
            **places(experts.down, far, down["down_q"], as_bytes=True),
        },
        {
            "F": experts.channels,
            "W": experts.width,
            **_constants(experts, experts.down, tile),
        },
        tile.warps,
        tile.stages,
    )


def _constants(experts: ExpertsArguments[Stack], stack: Stack, tile: GroupTile) -> dict[str, int]:
    skips = switches(experts)
    return {
        "FAR": skips["FAR"],
        "GAPS": skips["GAPS"],
        "E": experts.count,
        "FORMAT": format_of(stack),
        "SIZE": max(16, triton.next_power_of_2(experts.count)),
        "BN": tile.rows,
        "BM": tile.pairs,
        "STAGES": tile.stages,
    }


def add_up(
    each: torch.Tensor, choice: Choice, experts: ExpertsArguments[Stack], y: torch.Tensor
) -> Launch:
    """The launch that computes y [R, W], the weighted sum of each row's pairs."""
    (rows, width), skips = y.shape, switches(experts)
    return Launch(
        group_kernels.sum_kernel,
        (rows, -(-width // SUM_TILE_COLUMNS)),
        {
            "pairs_ptr": each,
            "ids_ptr": choice.ids,
            "weights_ptr": choice.weights,
            "bay_ptr": experts.bay_of_expert,
            **rows_pointer(experts),
            "y_ptr": y,
        },
        {
            "W": width,
            "TOP_K": choice.top_k,
            "GAPS": skips["GAPS"],
            "PADDED": skips["PADDED"],
            "COLUMNS": SUM_TILE_COLUMNS,
        },
    )

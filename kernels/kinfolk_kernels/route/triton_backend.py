"""``route`` on the GPU.

One launch computes the products with the router's matrix, and a second one the choice. From 33 rows
on the products run on tensor cores, in parts of the columns that the choice adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.route.kernel import (
    choose_kernel,
    few_logits_kernel,
    logits_kernel,
)
from kinfolk_kernels.route.op import RouteArguments
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

MAX_ROUTED_EXPERTS = 1024
MAX_FEW_ROWS = 32
"""Up to this many rows are multiplied without tensor cores."""

FEW_ROWS_AT_ONCE = 4
"""Most rows of a program of those."""

MAX_FEW_ROWS_COLUMNS = 8192
"""Most columns, which such a program holds in registers."""

FEW_ROWS_WARPS = 4
"""Warps of such a program."""

STEP_COLUMNS = 32
"""Columns of many rows that tensor cores add up."""


def supports(arguments: RouteArguments) -> Verdict:
    weight, dtype = arguments.weight, arguments.dtype
    reason = refuses_device(few_logits_kernel, weight.device, dtype)
    if reason:
        return no(reason)
    if dtype not in FLOATS:
        return no(f"rows of {dtype}")
    extras = [extra for extra in (arguments.bias, arguments.expert_scale) if extra is not None]
    if any(extra.dtype != torch.float32 or not extra.is_contiguous() for extra in extras):
        return no("a bias or scale of the experts is not contiguous float32")
    if any(extra.device != weight.device for extra in extras):
        return no(f"a bias or scale of the experts is not on {weight.device}")
    if weight.dtype != torch.float32 or not weight.is_contiguous():
        return no(f"the router's matrix is not contiguous float32 ({weight.dtype})")
    if weight.shape[0] > MAX_ROUTED_EXPERTS:
        return no(f"{weight.shape[0]} experts, more than {MAX_ROUTED_EXPERTS}")
    return YES


def route(arguments: RouteArguments, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`RouteArguments`."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    rows = x.shape[0]
    ids = torch.empty(rows, arguments.top_k, dtype=torch.int64, device=x.device)
    weights = torch.empty(rows, arguments.top_k, dtype=torch.float32, device=x.device)
    for launch in route_launches(arguments, x, ids, weights):
        launch.run()
    return ids, weights


def route_launches(
    arguments: RouteArguments, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> list[Launch]:
    """The launches that compute ids int64 and weights float32 [R, K] from x [R, W]."""
    (rows, width), weight = x.shape, arguments.weight
    if rows <= MAX_FEW_ROWS and width <= MAX_FEW_ROWS_COLUMNS:
        logits = torch.empty(rows, weight.shape[0], device=x.device)
        product = logits_of_few(x, weight, logits)
    else:
        logits = empty_parts(rows, width, weight.shape[0], x.device)
        product = logits_of_many(x, weight, logits)
    return [product, choose(arguments, logits, ids, weights)]


@dataclass(frozen=True, slots=True)
class RouteTile:
    """Rows and experts of a program that multiplies many rows, its warps, its steps of 32 columns,
    which are a part, and its pipeline stages.

    All numbers of rows have the same tile, so that a row has the same bits in all of them.
    """

    rows: int = 64
    experts: int = 32
    warps: int = 4
    steps: int = 8
    stages: int = 8

    def parts(self, width: int) -> int:
        """Parts of rows of ``width``."""
        return -(-width // (STEP_COLUMNS * self.steps))


ROUTE_TILE = RouteTile()

WIDE_GRID_ROWS, WIDE_GRID_STAGES = 1024, 4
"""So many rows have programs enough that it matters how many a multiprocessor holds at a time."""


def empty_parts(
    rows: int, width: int, experts: int, device: torch.device, tile: RouteTile = ROUTE_TILE
) -> torch.Tensor:
    """float32 [S, R, E] for the logits of rows of ``width`` in S parts."""
    return torch.empty(tile.parts(width), rows, experts, device=device)


def logits_of_many(
    x: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor, tile: RouteTile = ROUTE_TILE
) -> Launch:
    """The launch that computes logits [S, R, E] of x [R, W], in S parts, see ``empty_parts``."""
    (rows, width), experts = x.shape, weight.shape[0]
    stages = min(tile.stages, WIDE_GRID_STAGES) if rows >= WIDE_GRID_ROWS else tile.stages
    return Launch(
        logits_kernel,
        (-(-rows // tile.rows), -(-experts // tile.experts), tile.parts(width)),
        {
            "x_ptr": x,
            "weight_ptr": weight,
            "logits_ptr": logits,
            "rows": rows,
            "part_step": logits.stride(0),
            "x_row": x.stride(0),
        },
        {
            "EXPERTS": experts,
            "WIDTH": width,
            "BM": tile.rows,
            "BE": tile.experts,
            "BK": STEP_COLUMNS,
            "STEPS": tile.steps,
            "STAGES": stages,
        },
        tile.warps,
        stages,
    )


def choose(
    arguments: RouteArguments, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> Launch:
    """The launch that computes ids int64 and weights float32 [R, K] from logits [R, E], or from
    their parts [S, R, E], which it adds up."""
    parts = logits if logits.dim() == 3 else logits[None]
    count, rows, experts = parts.shape
    return Launch(
        choose_kernel,
        (rows,),
        {
            "logits_ptr": logits,
            **_pointers(arguments, logits, ids, weights),
            "rows": rows,
            "logits_row": parts.stride(1),
            "part_step": parts.stride(0),
            "scale": float(arguments.scale),
        },
        {**_constants(arguments, experts), "PARTS": count},
        warps=1,
    )


def logits_of_few(x: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor) -> Launch:
    """The launch that computes logits [R, E] of x [R, W], R few."""
    (rows, width), experts = x.shape, weight.shape[0]
    at_once = min(triton.next_power_of_2(rows), FEW_ROWS_AT_ONCE)
    lanes = 32 * FEW_ROWS_WARPS
    return Launch(
        few_logits_kernel,
        (experts, -(-rows // at_once)),
        {
            "x_ptr": x,
            "weight_ptr": weight,
            "logits_ptr": logits,
            "rows": rows,
            "x_row": x.stride(0),
        },
        {
            "WIDTH": width,
            "EXPERTS": experts,
            "LANES": lanes,
            "TILES": -(-width // (4 * lanes)),
            "ROWS": at_once,
        },
        FEW_ROWS_WARPS,
    )


def _pointers(
    arguments: RouteArguments, other: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Tensor arguments by name; an absent bias or scale is replaced by ``other`` float32."""
    bias, expert_scale = arguments.bias, arguments.expert_scale
    return {
        "bias_ptr": other if bias is None else bias,
        "expert_scale_ptr": other if expert_scale is None else expert_scale,
        "ids_ptr": ids,
        "weights_ptr": weights,
    }


def _constants(arguments: RouteArguments, experts: int) -> dict[str, int]:
    return {
        "EXPERTS": experts,
        "SIZE": triton.next_power_of_2(experts),
        "TOP_K": arguments.top_k,
        "PLACES": triton.next_power_of_2(arguments.top_k),
        "SOFTMAX": arguments.score == "softmax",
        "BIASED": arguments.bias is not None,
        "SCALED": arguments.expert_scale is not None,
    }

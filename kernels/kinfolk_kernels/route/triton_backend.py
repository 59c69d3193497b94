"""``route`` on the GPU.

For few rows, one launch computes the products with the router's matrix and the choice. For more
rows, the products run on tensor cores, in parts of the columns that the choice adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kinfolk_kernels.counters import counters
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.route.kernel import choose_kernel, logits_kernel, route_kernel
from kinfolk_kernels.route.op import RouteArguments
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

MAX_ROUTED_EXPERTS = 1024
MAX_ONE_LAUNCH_ROWS = 16
"""Up to this many rows one launch computes logits and choice."""

ROWS_AT_ONCE = 4
"""Rows of a program of that single launch: one for each warp, when it chooses."""

STEP_COLUMNS = 32
"""Columns of many rows that tensor cores add up."""

MAX_ONE_LAUNCH_COLUMNS = 8192
"""Most columns, which a program of that single launch holds in registers."""


def supports(arguments: RouteArguments) -> Verdict:
    weight, dtype = arguments.weight, arguments.dtype
    reason = refuses_device(route_kernel, weight.device, dtype)
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
    (rows, width), weight = x.shape, arguments.weight
    ids = torch.empty(rows, arguments.top_k, dtype=torch.int64, device=x.device)
    weights = torch.empty(rows, arguments.top_k, dtype=torch.float32, device=x.device)
    if rows <= MAX_ONE_LAUNCH_ROWS and width <= MAX_ONE_LAUNCH_COLUMNS:
        route_few(arguments, x, ids, weights).run()
        return ids, weights
    logits = empty_parts(rows, width, weight.shape[0], x.device)
    logits_of_many(x, weight, logits).run()
    choose(arguments, logits, ids, weights).run()
    return ids, weights


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
            "STAGES": tile.stages,
        },
        tile.warps,
        tile.stages,
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


def route_few(
    arguments: RouteArguments, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> Launch:
    """The launch that computes ids int64 and weights float32 [R, K] from x [R, W], R few."""
    (rows, width), experts = x.shape, arguments.weight.shape[0]
    columns = triton.next_power_of_2(width)
    share = 2 if columns <= 4096 else 1
    at_once = min(triton.next_power_of_2(rows), ROWS_AT_ONCE)
    logits = torch.empty(rows, experts, device=x.device)
    return Launch(
        route_kernel,
        (-(-experts // share), -(-rows // at_once)),
        {
            "x_ptr": x,
            "weight_ptr": arguments.weight,
            **_pointers(arguments, logits, ids, weights),
            "logits_ptr": logits,
            "done_ptr": counters(x.device),
            "rows": rows,
            "x_row": x.stride(0),
            "scale": float(arguments.scale),
        },
        {
            **_constants(arguments, experts),
            "WIDTH": width,
            "COLUMNS": columns,
            "ROWS": at_once,
            "SHARE": share,
        },
        warps=4,
    )


def _pointers(
    arguments: RouteArguments, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Tensor arguments by name; an absent bias or scale is replaced by the logits."""
    bias, expert_scale = arguments.bias, arguments.expert_scale
    return {
        "bias_ptr": logits if bias is None else bias,
        "expert_scale_ptr": logits if expert_scale is None else expert_scale,
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

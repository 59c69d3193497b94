"""The launches of ``experts`` for prompts on sm_90, whose products are in CUDA C++.

Pairs are grouped by expert as in ``group_launches``. Gate and up are rounded to float16 before the
activation, and each row of what comes out has a factor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import torch

from kinfolk_kernels.act_and_mul.triton_backend import CODES
from kinfolk_kernels.cuda_source import MAX_SHARED, CudaLaunch, CudaSource
from kinfolk_kernels.experts.bays import base
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import Order, add_up, sort
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.stacks import Stack
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_f16 import MULTIPROCESSORS, PAIR_COLUMNS, ROWS_OF_WARP
from kinfolk_kernels.linear.gemm_mma import (
    LEAVES_FIRST,
    PRODUCERS,
    THOUSAND,
    Y_TYPES,
    stage_bytes,
)
from kinfolk_kernels.linear.prepare import F16Rows, round_rows
from kinfolk_kernels.linear.segments import counters
from kinfolk_kernels.planes import LAYOUTS, PlanesStack

MMA_GROUPS = Path(__file__).with_name("mma_groups.cu")

BLOCK_PAIRS = 80
"""Pairs of a block. A kernel with wider tiles beside narrow ones has no registers for products that
are under way, says the assembler, and waits for each."""

ROW_WARPS = 8
"""Warps that multiply, each for 32 rows of a matrix."""

MOST_STAGES = 6
"""Most stages that are tried; three to five fit, by format."""

_MOST_BAYS = 2**31 - 1


def mma_group_launches(
    x: torch.Tensor, choice: Choice, experts: ExpertsArguments[Stack], y: torch.Tensor
) -> Iterator[Launch | CudaLaunch]:
    """The launches that compute y float32 [R, W] from x [R, W]; all stacks are in planes."""
    device, pairs = x.device, choice.ids.numel()
    rows = F16Rows.make(x.shape[0], experts.width, device)
    yield round_rows(x, rows)
    order = Order.make(pairs, experts.count, device)
    yield from sort(choice.ids, order, BLOCK_PAIRS, experts.rows)
    both = torch.empty(2, pairs, experts.channels, dtype=torch.float16, device=device)
    yield group_products(("gate", "up"), rows, choice.top_k, experts, order, both)
    inner = F16Rows.make(pairs, experts.channels, device)
    yield round_rows(both[0], inner, both[1], CODES[experts.activation])
    each = torch.empty(1, pairs, experts.width, dtype=torch.float16, device=device)
    yield group_products(("down",), inner, 0, experts, order, each)
    yield add_up(each[0], choice, experts, y)


class _Groups(ctypes.Structure):
    _fields_ = (
        ("q", ctypes.c_void_p * 2),
        ("high", ctypes.c_void_p * 2),
        ("scales", ctypes.c_void_p * 2),
        ("supers", ctypes.c_void_p * 2),
        ("steps", ctypes.c_uint64 * 4),
        ("apart", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("factor", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("bay_of_expert", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("next", ctypes.c_void_p),
        ("near", ctypes.c_int),
        ("pairs", ctypes.c_int),
        ("constant", ctypes.c_uint),
        ("policy", ctypes.c_uint64),
    )


def group_products(
    names: tuple[str, ...],
    rows: F16Rows,
    top_k: int,
    experts: ExpertsArguments[Stack],
    order: Order,
    y: torch.Tensor,
) -> CudaLaunch:
    """The launch that computes y float16 [M, P, N], the products of each pair with its matrix of
    the stacks ``names``. ``top_k``: pairs of a row of ``rows``, whose results are in sorted order;
    0 = it has a row for each pair, in that order, and results are in the order before sorting."""
    homes = [getattr(experts.far, name) if experts.far else None for name in names]
    pairs_of_stacks = zip(names, homes, strict=True)
    stacks = [_packed(base(getattr(experts, name), far)) for name, far in pairs_of_stacks]
    first, device = stacks[0], y.device
    next_item = counters(device, 1)
    near, apart, steps = _MOST_BAYS, 0, _steps(first)
    if homes[0] is not None:
        home = _packed(homes[0])
        near, steps = experts.near, _steps(home)
        apart = home.q.data_ptr() - first.q.data_ptr() - near * steps[0]
    groups = _Groups(
        *(_addresses(stacks, plane) for plane in ("q", "high", "scales", "supers")),
        (ctypes.c_uint64 * 4)(*steps),
        apart,
        rows.numbers.data_ptr(),
        rows.factor.data_ptr(),
        *(part.data_ptr() for part in order.parts),
        experts.bay_of_expert.data_ptr(),
        y.data_ptr(),
        next_item.data_ptr(),
        near,
        y.shape[1],
        THOUSAND,
        LEAVES_FIRST,
    )
    matrices, _, outputs = y.shape
    macros = {
        "F0": LAYOUTS[first.format].number,
        "COLUMNS": first.columns,
        "ROWS": outputs,
        "MATRICES": matrices,
        "EXPERTS": experts.count,
        "TOP_K": top_k,
        "STAGES_OF_ROUNDS": stages_for(first.format, experts.count),
        "ROW_WARPS": ROW_WARPS,
        "COLUMN_WARPS": 1,
        "ROW_TILES": BLOCK_PAIRS // 8,
        "WARPGROUPS": 1,
        "Y_TYPE": Y_TYPES[y.dtype],
    }
    items = order.blocks(BLOCK_PAIRS) * matrices * -(-outputs // (ROWS_OF_WARP * ROW_WARPS))
    return CudaLaunch(
        CudaSource.make(MMA_GROUPS, MMA_GROUPS.stem, macros),
        min(items, MULTIPROCESSORS),
        32 * (ROW_WARPS + PRODUCERS),
        _shared(first.format, experts.count, macros["STAGES_OF_ROUNDS"]),
        (groups,),
        device,
        (experts, stacks, rows, order, y, next_item),
    )


def _packed(stack: Stack) -> PlanesStack:
    if isinstance(stack, PlanesStack):
        return stack
    raise ValueError(f"experts of {stack.dtype} are not in planes")


def stages_for(format: str, experts: int) -> int:
    """Stages for which there is shared memory: two at least."""
    fit = (n for n in range(MOST_STAGES, 1, -1) if _shared(format, experts, n) <= MAX_SHARED)
    return next(fit)


def _shared(format: str, experts: int, stages: int) -> int:
    """Bytes of shared memory of a program: ``Known`` of the kernel, and stages of x and weights."""
    known = 16 * stages + (stages + 2) * (8 + 8 * BLOCK_PAIRS) + 8 * BLOCK_PAIRS + 8
    known += 4 * (3 * experts + 2) + 8
    stage = BLOCK_PAIRS * 2 * PAIR_COLUMNS + ROW_WARPS * stage_bytes(format)
    return -(-known // 1024) * 1024 + stages * stage


def _addresses(stacks: list[PlanesStack], plane: str) -> ctypes.Array[ctypes.c_void_p]:
    """Those of a plane in bay 0 of each stack; none where the format has no such plane."""
    planes = [getattr(stack, plane) for stack in stacks]
    found = [None if each is None else each.data_ptr() for each in planes]
    return (ctypes.c_void_p * 2)(*found)


def _steps(stack: PlanesStack) -> list[int]:
    """Bytes between the bays of each plane."""
    planes = (stack.q, stack.high, stack.scales, stack.supers)
    return [0 if plane is None else plane.stride(0) * plane.element_size() for plane in planes]

"""The launches of ``experts`` for a few rows an expert: groups of pairs, with rows in int8."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import torch
import triton

from kinfolk_kernels.act_and_mul.triton_backend import launch as act_and_mul
from kinfolk_kernels.experts.bays import base, places, switches
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import Order, add_up, sort
from kinfolk_kernels.experts.int8_group_kernel import int8_group_kernel
from kinfolk_kernels.experts.op import ExpertsArguments
from kinfolk_kernels.experts.stacks import Stack, format_of, pointers
from kinfolk_kernels.int8_rows import Int8Rows, made_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_int8 import INT8_REGISTERS, PAIR, WARP_ROWS
from kinfolk_kernels.linear.prepare import quantize_rows
from kinfolk_kernels.row_outputs import RowOutputs

EIGHTS = 2
"""Most eights of pairs in a block that the op chooses: with more, sums take so many registers that
fewer programs run side by side, which cost more than reading an expert twice on an H100."""

PROGRAM_PAIRS = 16
"""Pairs of groups of columns that a program should multiply: with fewer in a row of the matrix, it
has several tiles, as its begin and end take as long as some pairs."""


def int8_group_launches(
    x: torch.Tensor,
    choice: Choice,
    experts: ExpertsArguments[Stack],
    y: torch.Tensor,
    *,
    eights: int | None = None,
    asm: bool = True,
) -> Iterator[Launch]:
    """The launches that compute y float32 [R, W] from x [R, W], which is rounded to int8, as is
    what is between the products. ``eights``: eights of pairs in a block, for tuning."""
    device, pairs = x.device, choice.ids.numel()
    eights = eights or eights_for(pairs, experts.count)
    rows = made_int8(x)
    if rows is None:
        rows = Int8Rows.make(x.shape[0], experts.width, device)
        yield quantize_rows(x, rows)
    order = Order.make(pairs, experts.count, device)
    yield from sort(choice.ids, order, 8 * eights, experts.rows)
    both = torch.empty(2, pairs, experts.channels, device=device)
    yield group_products("gate", "up", rows, choice.top_k, experts, order, both, eights, asm=asm)
    inner = RowOutputs.make(pairs, experts.channels, None, True, device)
    yield act_and_mul(experts.activation, both[0], both[1], inner)
    # float16 halves the bytes; rows of int8 had no more precision.
    each = torch.empty(1, pairs, experts.width, dtype=torch.float16, device=device)
    assert inner.int8 is not None
    yield group_products("down", "down", inner.int8, 0, experts, order, each, eights, asm=asm)
    yield add_up(each[0], choice, experts, y)


def eights_for(pairs: int, experts: int) -> int:
    """Eights of pairs of a block: up to ``EIGHTS``, nearly all experts have one block if rows
    choose evenly."""
    mean = pairs / experts
    return max(1, min(EIGHTS, -(-int(mean + 2 * sqrt(mean)) // 8)))


def group_products(
    first: str,
    second: str,
    rows: Int8Rows,
    top_k: int,
    experts: ExpertsArguments[Stack],
    order: Order,
    y: torch.Tensor,
    eights: int,
    *,
    asm: bool,
) -> Launch:
    """The launch that computes y [M, P, N] in float32 or float16, the products of each pair with
    its matrix of the ``first`` stack, and of the ``second`` for M = 2. ``top_k``: pairs of a row of
    ``rows``; 0 = it has a row for each pair, in sorted order."""
    stack, far = getattr(experts, first), experts.far
    homes = {name: getattr(far, name) if far else None for name in (first, second)}
    bay_0 = {name: base(getattr(experts, name), homes[name]) for name in (first, second)}
    planes = pointers("first", bay_0[first], as_bytes=False)
    matrices, _, outputs = y.shape
    columns = stack.shape[2]
    tiles = max(1, PROGRAM_PAIRS // -(-columns // PAIR))
    parts = -(-outputs // (WARP_ROWS * tiles))
    skips = switches(experts)
    return Launch(
        int8_group_kernel,
        (matrices * parts, order.blocks(8 * eights)),
        {
            "words_ptr": rows.words,
            "scale_ptr": rows.scale,
            **order.arguments,
            "bay_ptr": experts.bay_of_expert,
            **planes,
            **pointers("second", bay_0[second], as_bytes=False),
            "y_ptr": y,
            "d_step": rows.scale.stride(0),
            "pairs": y.shape[1],
            **places(stack, homes[first], planes["first_q"], as_bytes=False),
        },
        {
            "K": columns,
            "N": outputs,
            "TOP_K": top_k,
            "E": experts.count,
            "FORMAT": format_of(stack),
            "FAR": skips["FAR"],
            "GAPS": skips["GAPS"],
            "MASKED": columns % PAIR != 0,
            "SIZE": max(16, triton.next_power_of_2(experts.count)),
            "NT": eights,
            "TILES": tiles,
            "ASM": asm,
        },
        warps=1,
        registers=INT8_REGISTERS if eights <= 2 else None,
    )

"""``act_and_mul`` on the GPU, in one launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kinfolk_kernels.act_and_mul.op import ActAndMulArguments, Activation
from kinfolk_kernels.activations import ACTIVATION_BOUND, GELU, SILU, activation
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.int8_rows import GROUP_NUMBERS
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.mma_rows import largest, power_of_two, store_mma
from kinfolk_kernels.row_forms import worth_int8, worth_mma
from kinfolk_kernels.row_outputs import (
    ROW_TILE_NUMBERS,
    WIDE_ROWS,
    RowOutputs,
    load_groups,
    store_groups,
)
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

ACTIVATION_TILE_NUMBERS = 512
"""Numbers that a program computes."""

WIDE_TILE_NUMBERS = 1024
"""The same for many rows, of which a lane moves 16 bytes at once."""

MOST_ROW_PROGRAMS = 132
"""Up to as many programs of a launch, one on each multiprocessor of a large device, the tiles of a
row are divided among programs that read whole rows."""

CODES = {"silu": SILU.value, "gelu_tanh": GELU.value}
"""The kernels' number of each activation."""


@triton.jit(do_not_specialize=["scale_step"])
def act_and_mul_kernel(
    gate_ptr,
    up_ptr,
    out_ptr,
    words_ptr,
    scale_ptr,
    scale_step,
    width,
    gate_row,
    up_row,
    ACTIVATION: tl.constexpr,
    GROUPS: tl.constexpr,
    VALUES: tl.constexpr,
    INT8: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, width / GROUPS / 64): a program computes GROUPS groups of 64 numbers of a row."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    first = tl.program_id(1) * (GROUPS * 64)
    wait_for_producers(PDL)
    gate = load_groups(gate_ptr, row * gate_row, row >= 0, first, width, GROUPS, WIDE)
    up = load_groups(up_ptr, row * up_row, row >= 0, first, width, GROUPS, WIDE)
    y = activation(gate, ACTIVATION) * up
    store_groups(
        y, row * width, row >= 0, first, width, out_ptr, words_ptr, scale_ptr, row, scale_step,
        VALUES, INT8, WIDE,
    )  # fmt: skip


@triton.jit
def act_and_mul_row_kernel(
    gate_ptr, up_ptr, out_ptr, words_ptr, scale_ptr,
    width,
    gate_row,
    up_row,
    ACTIVATION: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr, OWN: tl.constexpr,
    VALUES: tl.constexpr, MMA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, TILES / OWN): the same, also stored as ``MmaRows`` of MMA tiles. A program reads
    a row of TILES tiles of GROUPS groups, and computes OWN of them.

    The factor is that of a bound of the row's numbers, for which no activation is computed:
    |act(g)| is at most g or, if that is less, ``ACTIVATION_BOUND``. Too large a bound costs
    nothing before it is 2^10 times the largest number: then float16 begins to lose bits of those
    that are 2^17 times smaller."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    live = row >= 0
    mine = tl.program_id(1) * OWN
    wait_for_producers(PDL)
    most = tl.zeros([1, GROUPS, 16, 4], tl.float32)
    for i in tl.static_range(TILES):
        first = i * (GROUPS * 64)
        gate = load_groups(gate_ptr, row * gate_row, live, first, width, GROUPS, False)
        up = load_groups(up_ptr, row * up_row, live, first, width, GROUPS, False)
        most = tl.maximum(most, tl.maximum(gate, ACTIVATION_BOUND) * tl.abs(up))
    factor, inverse = power_of_two(largest(most))
    if mine == 0:
        tl.store(scale_ptr + row, inverse)
    for i in tl.static_range(OWN):
        first = (mine + i) * (GROUPS * 64)
        gate = load_groups(gate_ptr, row * gate_row, live, first, width, GROUPS, False)
        up = load_groups(up_ptr, row * up_row, live, first, width, GROUPS, False)
        y = activation(gate, ACTIVATION) * up
        store_groups(
            y, row * width, live, first, width, out_ptr, words_ptr, scale_ptr, row, 0,
            VALUES, False, False,
        )  # fmt: skip
        store_mma(y * factor[:, None, None, None], row, live, first, width, words_ptr, MMA)


def supports(arguments: ActAndMulArguments) -> Verdict:
    reason = refuses_device(act_and_mul_kernel, arguments.device, arguments.dtype)
    if reason:
        return no(reason)
    if arguments.dtype not in FLOATS:
        return no(f"rows of {arguments.dtype}")
    return YES


def act_and_mul(
    arguments: ActAndMulArguments, gate: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """See :class:`ActAndMulArguments`."""
    return multiply(arguments.activation, gate, up)


def multiply(activation: Activation, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """activation(gate) * up of any shape, in the dtype of ``up``; rows are also stored in the form
    that the product that follows is likely to read."""
    int8, mma = worth_int8(up), worth_mma(up)
    outputs = multiply_rows(activation, gate, up, up.dtype, int8=int8, mma=mma)
    return outputs.marked(up.shape)


def multiply_rows(
    activation: Activation,
    gate: torch.Tensor,
    up: torch.Tensor,
    dtype: torch.dtype | None,
    *,
    int8: bool,
    mma: bool = False,
) -> RowOutputs:
    """activation(gate) * up of [..., K] as rows in ``dtype``, in int8 or ``MmaRows``, or both."""
    flat_gate, flat_up = (x.reshape(-1, x.shape[-1]) for x in (gate, up))
    rows, width = flat_up.shape
    outputs = RowOutputs.make(rows, width, dtype, int8, up.device, mma)
    launch(activation, flat_gate, flat_up, outputs).run()
    return outputs


def launch(
    activation: Activation, gate: torch.Tensor, up: torch.Tensor, outputs: RowOutputs
) -> Launch:
    """The launch for gate and up [R, K], which may have different row strides."""
    rows, width = up.shape
    operands = {
        "gate_ptr": gate,
        "up_ptr": up,
        **outputs.arguments,
        "width": width,
        "gate_row": gate.stride(0),
        "up_row": up.stride(0),
    }
    if outputs.mma is not None:
        return _of_whole_rows(activation, operands, rows, width, outputs)
    wide = rows >= WIDE_ROWS and outputs.int8 is None
    numbers = WIDE_TILE_NUMBERS if wide else ACTIVATION_TILE_NUMBERS
    return Launch(
        act_and_mul_kernel,
        (rows, -(-width // numbers)),
        operands,
        {
            "ACTIVATION": CODES[activation],
            "GROUPS": numbers // GROUP_NUMBERS,
            **outputs.constants,
            "WIDE": wide,
        },
    )


def _of_whole_rows(
    activation: Activation, operands: dict[str, Any], rows: int, width: int, outputs: RowOutputs
) -> Launch:
    """The launch whose programs read whole rows."""
    numbers = min(ROW_TILE_NUMBERS, 1 << (width - 1).bit_length())
    tiles = -(-width // numbers)
    own = -(-tiles // max(1, MOST_ROW_PROGRAMS // rows))
    given = {name: value for name, value in operands.items() if name != "scale_step"}
    return Launch(
        act_and_mul_row_kernel,
        (rows, -(-tiles // own)),
        given,
        {
            "ACTIVATION": CODES[activation],
            "GROUPS": numbers // GROUP_NUMBERS,
            "TILES": tiles,
            "OWN": own,
            "VALUES": outputs.values is not None,
            "MMA": outputs.mma_tiles,
        },
        numbers // (4 * 32),
    )

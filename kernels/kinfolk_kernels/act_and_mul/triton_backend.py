"""``act_and_mul`` on the GPU, in one launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kinfolk_kernels.act_and_mul.op import ActAndMulArguments, Activation
from kinfolk_kernels.activations import GELU, SILU, activation
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.int8_rows import GROUP_NUMBERS, worth_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.mma_rows import largest, power_of_two, store_mma, worth_mma
from kinfolk_kernels.row_outputs import (
    ROW_TILE_NUMBERS,
    WIDE_ROWS,
    RowOutputs,
    columns_of,
    load_groups,
    store_groups,
)
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

ACTIVATION_TILE_NUMBERS = 512
"""Numbers that a program computes."""

WIDE_TILE_NUMBERS = 1024
"""The same for many rows, of which a lane moves 16 bytes at once."""

MAX_ROW_NUMBERS = 32768
"""Numbers in the widest row that one program computes: its registers hold them all."""

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
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (GROUPS * 64)
    if WIDE:
        column = first + tl.arange(0, GROUPS * 64)
    else:
        column = columns_of(first, GROUPS)
    inside = column < width
    wait_for_producers(PDL)
    gate = tl.load(gate_ptr + row * gate_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + column, mask=inside, other=0.0).to(tl.float32)
    y = activation(gate, ACTIVATION) * up
    if WIDE:
        tl.store(out_ptr + row * width + column, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        line = row + tl.arange(0, 1)
        store_groups(
            y, line * width, line >= 0, first, width, out_ptr, words_ptr,
            scale_ptr, line, scale_step, VALUES, INT8, False,
        )  # fmt: skip


@triton.jit
def act_and_mul_row_kernel(
    gate_ptr, up_ptr, out_ptr, words_ptr, scale_ptr,
    width,
    gate_row,
    up_row,
    ACTIVATION: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr, VALUES: tl.constexpr,
    MMA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows): a program computes a row, in TILES tiles of GROUPS groups, which is also stored
    as ``MmaRows`` of MMA tiles."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    line = row + tl.arange(0, 1)
    live = line >= 0
    wait_for_producers(PDL)
    gates, ups = (), ()
    for i in tl.static_range(TILES):
        first = i * (GROUPS * 64)
        gate = load_groups(gate_ptr, line * gate_row, live, first, width, GROUPS, False)
        gates = gates + (gate,)  # type: ignore[assignment]
        up = load_groups(up_ptr, line * up_row, live, first, width, GROUPS, False)
        ups = ups + (up,)  # type: ignore[assignment]
    tiles = ()
    most = tl.zeros([1, GROUPS, 16, 4], tl.float32)
    for i in tl.static_range(TILES):
        y = activation(gates[i], ACTIVATION) * ups[i]
        tiles = tiles + (y,)  # type: ignore[assignment]
        most = tl.maximum(most, tl.abs(y))
    factor, inverse = power_of_two(largest(most))
    tl.store(scale_ptr + line, inverse)
    for i in tl.static_range(TILES):
        first = i * (GROUPS * 64)
        store_groups(
            tiles[i], line * width, live, first, width, out_ptr, words_ptr, scale_ptr, line, 0,
            VALUES, False, False,
        )  # fmt: skip
        numbers = tiles[i] * factor[:, None, None, None]
        store_mma(numbers, line, live, first, width, words_ptr, MMA)


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
    mma = worth_mma(up) and up.shape[1] <= MAX_ROW_NUMBERS
    outputs = multiply_rows(activation, gate, up, up.dtype, int8=worth_int8(up), mma=mma)
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
    """The launch with a program for each row."""
    numbers = min(ROW_TILE_NUMBERS, max(128, 1 << (width - 1).bit_length()))
    given = {name: value for name, value in operands.items() if name != "scale_step"}
    return Launch(
        act_and_mul_row_kernel,
        (rows,),
        given,
        {
            "ACTIVATION": CODES[activation],
            "GROUPS": numbers // GROUP_NUMBERS,
            "TILES": -(-width // numbers),
            "VALUES": outputs.values is not None,
            "MMA": outputs.mma_tiles,
        },
        numbers // (4 * 32),
    )

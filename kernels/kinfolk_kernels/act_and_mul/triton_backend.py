"""``act_and_mul`` on the GPU, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kinfolk_kernels.act_and_mul.op import ActAndMulArguments, Activation
from kinfolk_kernels.activations import GELU, SILU, activation
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.int8_rows import GROUP_NUMBERS, with_int8, worth_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.row_outputs import WIDE_ROWS, RowOutputs, columns_of, store_groups
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

ACTIVATION_TILE_NUMBERS = 512
"""Numbers that a program computes."""

WIDE_TILE_NUMBERS = 1024
"""The same for many rows, of which a lane moves 16 bytes at once."""

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
    """activation(gate) * up of any shape, in the dtype of ``up``; up to ``MAX_INT8_ROWS`` rows are
    also stored as int8."""
    outputs = multiply_rows(activation, gate, up, up.dtype, int8=worth_int8(up))
    return with_int8(outputs.values.view(up.shape), outputs.int8)  # type: ignore[union-attr]


def multiply_rows(
    activation: Activation,
    gate: torch.Tensor,
    up: torch.Tensor,
    dtype: torch.dtype | None,
    *,
    int8: bool,
) -> RowOutputs:
    """activation(gate) * up of [..., K] as rows in ``dtype``, in int8, or both."""
    flat_gate, flat_up = (x.reshape(-1, x.shape[-1]) for x in (gate, up))
    rows, width = flat_up.shape
    outputs = RowOutputs.make(rows, width, dtype, int8, up.device)
    launch(activation, flat_gate, flat_up, outputs).run()
    return outputs


def launch(
    activation: Activation, gate: torch.Tensor, up: torch.Tensor, outputs: RowOutputs
) -> Launch:
    """The launch for gate and up [R, K], which may have different row strides."""
    rows, width = up.shape
    wide = rows >= WIDE_ROWS and outputs.int8 is None
    numbers = WIDE_TILE_NUMBERS if wide else ACTIVATION_TILE_NUMBERS
    return Launch(
        act_and_mul_kernel,
        (rows, -(-width // numbers)),
        {
            "gate_ptr": gate,
            "up_ptr": up,
            **outputs.arguments,
            "width": width,
            "gate_row": gate.stride(0),
            "up_row": up.stride(0),
        },
        {
            "ACTIVATION": CODES[activation],
            "GROUPS": numbers // GROUP_NUMBERS,
            **outputs.constants,
            "WIDE": wide,
        },
    )

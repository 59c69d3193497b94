"""Elementwise product of a curved gate and its partner: the kernel of silu_mul and gelu_mul."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kinfolk_kernels.activations import activation
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.int8_rows import GROUP, with_int8, worth_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.row_outputs import RowOutputs, columns_of, store_groups
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

TILE = 512
"""Numbers a program."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit(do_not_specialize=["scale_step"])
def gated_product_kernel(
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
    PDL: tl.constexpr,
):
    """Grid (rows, width / GROUPS / 64)."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (GROUPS * 64)
    column = columns_of(first, GROUPS)
    inside = column < width
    wait_for_producers(PDL)
    gate = tl.load(gate_ptr + row * gate_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + column, mask=inside, other=0.0).to(tl.float32)
    y = activation(gate, ACTIVATION) * up
    line = row + tl.arange(0, 1)
    store_groups(
        y, line * width, line >= 0, first, width, out_ptr, words_ptr,
        scale_ptr, line, scale_step, VALUES, INT8,
    )  # fmt: skip


def supports(gate: torch.Tensor, up: torch.Tensor) -> Verdict:
    """Whether the product can be done."""
    reason = out_of_reach(gated_product_kernel, gate, up)
    if reason:
        return no(reason)
    if gate.dtype not in FLOATS or up.dtype not in FLOATS:
        return no(f"rows of {gate.dtype} and {up.dtype}")
    return YES


def multiply(curved: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """activation(gate) * up in the type of ``up``, any shape; up to ``MAX_INT8_ROWS`` rows are
    stored as int8 too."""
    made = multiply_rows(curved, gate, up, up.dtype, int8=worth_int8(up))
    return with_int8(made.values.view(up.shape), made.int8)  # type: ignore[union-attr]


def multiply_rows(
    curved: int, gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype | None, *, int8: bool
) -> RowOutputs:
    """activation(gate) * up of [..., K] as rows in ``dtype``, in int8, or both."""
    flat_gate, flat_up = (x.reshape(-1, x.shape[-1]) for x in (gate, up))
    rows, width = flat_up.shape
    outputs = RowOutputs.make(rows, width, dtype, int8, up.device)
    product(curved, flat_gate, flat_up, outputs).run()
    return outputs


def product(curved: int, gate: torch.Tensor, up: torch.Tensor, outputs: RowOutputs) -> Launch:
    """gate and up [R, K], each with a row stride of its own."""
    rows, width = up.shape
    return Launch(
        gated_product_kernel,
        (rows, -(-width // TILE)),
        {
            "gate_ptr": gate,
            "up_ptr": up,
            **outputs.arguments,
            "width": width,
            "gate_row": gate.stride(0),
            "up_row": up.stride(0),
        },
        {"ACTIVATION": curved, "GROUPS": TILE // GROUP, **outputs.constants},
    )

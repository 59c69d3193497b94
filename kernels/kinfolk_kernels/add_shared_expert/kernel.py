"""The kernel that adds the shared expert of a row."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.curves import sigmoid


@triton.jit
def add_shared_expert_kernel(
    routed_ptr,
    shared_ptr,
    x_ptr,
    gate_ptr,
    out_ptr,
    routed_row,
    shared_row,
    x_row,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    GATED: tl.constexpr,
):
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    inside = column < WIDTH
    total = tl.load(routed_ptr + row * routed_row + column, mask=inside, other=0.0)
    added = tl.load(shared_ptr + row * shared_row + column, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        x = tl.load(x_ptr + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + column, mask=inside, other=0.0)
        added = added * sigmoid(tl.sum(x * gate, 0))
    tl.store(out_ptr + row * WIDTH + column, total.to(tl.float32) + added, mask=inside)

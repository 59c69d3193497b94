"""The kernel that adds the shared expert to the routed ones."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import sigmoid
from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit
def add_shared_kernel(
    routed_ptr,
    shared_ptr,
    x_ptr,
    shared_gate_ptr,
    shared_row,
    x_row,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows,): adds the shared expert to routed [rows, WIDTH] in place."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    inside = column < WIDTH
    wait_for_producers(PDL)
    total = tl.load(routed_ptr + row * WIDTH + column, mask=inside, other=0.0)
    added = tl.load(shared_ptr + row * shared_row + column, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        x = tl.load(x_ptr + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
        shared_gate = tl.load(shared_gate_ptr + column, mask=inside, other=0.0)
        added = added * sigmoid(tl.sum(x * shared_gate, 0))
    tl.store(routed_ptr + row * WIDTH + column, total + added, mask=inside)

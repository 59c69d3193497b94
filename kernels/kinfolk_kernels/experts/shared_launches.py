"""The shared expert as matrix products of all rows, added to the routed experts."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.act_and_mul.op import Activation
from kinfolk_kernels.act_and_mul.triton_backend import multiply
from kinfolk_kernels.experts.op import SharedExpert
from kinfolk_kernels.experts.shared_kernel import add_shared_kernel
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.triton_backend import products


def shared_rows(x: torch.Tensor, shared: SharedExpert, activation: Activation) -> torch.Tensor:
    """down(activation(gate x) * up x) [R, W] in the dtype of x [R, W]."""
    gate, up = products(x, (shared.gate, shared.up))
    return products(multiply(activation, gate, up), (shared.down,))[0]


def add_shared(
    routed: torch.Tensor, shared: torch.Tensor, x: torch.Tensor, shared_gate: torch.Tensor | None
) -> Launch:
    """The launch that adds ``shared`` [R, W] to routed float32 [R, W], contiguous, in place; see
    the reference."""
    rows, width = routed.shape
    return Launch(
        add_shared_kernel,
        (rows,),
        {
            "routed_ptr": routed,
            "shared_ptr": shared,
            "x_ptr": x,
            "shared_gate_ptr": routed if shared_gate is None else shared_gate,
            "shared_row": shared.stride(0),
            "x_row": x.stride(0),
        },
        {"WIDTH": width, "SIZE": triton.next_power_of_2(width), "GATED": shared_gate is not None},
        warps=8 if width > 1024 else 1,
    )
